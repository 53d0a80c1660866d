"""The benchmarks of decoding and of preparation: every system does the same work."""

import pathlib
import sys

import numpy as np
import pytest

from gshard_nmt.decoding.fitting import batch_shape
from gshard_nmt.run.arrays import step_functions

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


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


@pytest.fixture
def run_preparation(load, tmp_path, monkeypatch, capsys):
    """Runs the benchmark with times of its own; returns what it prints, and the calls of the program."""
    preparation = load("preparation")
    monkeypatch.chdir(tmp_path)  # without data/demo
    calls = []

    def run(seconds, *flags):
        times = iter(seconds)

        def prepare(arguments, out, *own):
            calls.append((out, own))
            return next(times)

        monkeypatch.setattr(preparation, "prepare", prepare)
        monkeypatch.setattr(preparation, "bare", lambda columns, models: 2.0)
        command = ["preparation.py", "--rows", "20", "--page", "never", "--languages", "fr", "de"]
        monkeypatch.setattr(sys, "argv", [*command, *flags])
        preparation.main()
        assert next(times, None) is None
        return capsys.readouterr().out, calls

    return run


def test_preparation_is_compared_with_bare_sentencepiece(run_preparation):
    # CPU seconds: new vocabularies; and in each round the start, and the two ways.
    seconds = [9, *(2, 5, 8), *(2, 7, 10), *(2, 6, 7)]
    out, calls = run_preparation(seconds, "--rounds", "3")
    assert out.startswith("40 pairs of fr, de. The start takes 2.0 CPU seconds")
    assert "With new vocabularies, all takes 9.0 CPU seconds." in out
    assert "| bare SentencePiece |   50000.0 |                     1.00 | 1.00 to 1.00 |\n" in out
    assert "| filters off        |  100000.0 |                     2.00 | 1.50 to 2.50 |\n" in out
    assert "| default filters    |  150000.0 |                     3.00 | 2.50 to 4.00 |\n" in out
    assert "`benchmarks/preparation.py --rows 20" in out
    assert out.endswith("docs/performance.md is unchanged, because of --page never.\n")
    assert len({folder for folder, _ in calls}) == 7  # the models, and each way in each round
    assert "Cleaning.filters = []" in calls[2][1]
    assert "Cleaning.filters = []" not in calls[3][1]
