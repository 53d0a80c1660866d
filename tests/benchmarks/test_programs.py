"""The benchmark of decoding: every system does the same work."""

import numpy as np
import pytest

from gshard_nmt.decoding.fitting import batch_shape
from gshard_nmt.run.arrays import step_functions


def workload_of(load, **sizes):
    return load("translators.workload").Workload(cores=(0,), **sizes)


@pytest.mark.parametrize("experts", [0, 8])
def test_our_search_makes_as_many_steps_as_the_workload_says(load, experts):
    workload = workload_of(load, experts=experts, target_tokens=32)
    config = load("translators.ours").config_of(workload)
    assert batch_shape(config, 24).max_steps == 32
    assert (config.decode.rows, config.decode.beam, config.model.experts) == (32, 4, experts)


def test_the_weights_forbid_the_end_of_a_sentence(load):
    from gshard_nmt.model import decoder_step

    ours = load("translators.ours")
    small = {"model_dim": 16, "hidden_dim": 32, "layers": 2, "heads": 2, "vocabulary": 320}
    config = ours.config_of(workload_of(load, experts=4, **small))
    declared = step_functions(config).declare_parameters()
    rng = np.random.default_rng(1)
    weights = {name: ours.draw(parameter, rng) for name, parameter in declared.items()}
    ours.forbid_end(weights)
    # Each row feeds another token to the decoder.
    tokens = np.arange(2, 100, dtype=np.int32)[:, np.newaxis]
    batch = {
        "source_ids": np.hstack([tokens, np.ones_like(tokens)]),
        "source_segments": np.ones((len(tokens), 2), np.int32),
        "source_positions": np.tile(np.arange(2, dtype=np.int32), (len(tokens), 1)),
    }
    import tensorflow as tf

    weights, batch = (tf.nest.map_structure(tf.constant, arrays) for arrays in (weights, batch))
    cache = decoder_step.start(config.model, weights, batch, 1, 1)
    mask = tf.ones([len(tokens), 1, 1])
    log_probs, _ = decoder_step.step(
        config.model, weights, tf.constant(tokens), mask, tf.constant(0), cache
    )
    assert log_probs[..., ours.EOS].numpy().max() < -1000
    assert np.delete(log_probs.numpy(), ours.EOS, axis=-1).min() > -100
