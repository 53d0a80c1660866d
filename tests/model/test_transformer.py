"""The Transformer: its parameters, packed rows, positions and settings."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.errors import UserError
from gshard_nmt.model import attention, counter_random, transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode, declare_feed_forward, feed_forward, rms_norm
from gshard_nmt.model.parameters import initial_values
from tests.model.examples import DENSE, ONE, SMALL, TWO, parameters, rows
from tests.model.parameter_kinds import count_by_kind


def logits(model: Model, p, batch):
    moe = model.moe(training=False) if model.experts else None
    memory, _ = transformer.encode(model, p, batch, Mode(), moe)
    return transformer.decode(model, p, memory, batch, Mode(), moe)[0].numpy()


@pytest.mark.parametrize("model", [SMALL, DENSE])
@pytest.mark.parametrize("positions", transformer.POSITIONS)
def test_packed_sentences_get_the_logits_that_they_get_alone(model, positions):
    model = dataclasses.replace(model, positions=positions)
    p = parameters(model)
    packed = logits(model, p, rows([ONE, TWO], length=8))
    alone = logits(model, p, rows([ONE], [TWO], length=8))
    np.testing.assert_allclose(packed[0, :3], alone[0, :3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(packed[0, 3:7], alone[1, :4], rtol=1e-4, atol=1e-5)


def test_parameters_are_those_of_the_paper_at_reduced_size():
    """Attention 4 M N D (decoder twice), experts E * 2 M H, dense 2 M H, gates M E, embeddings."""
    m, h, e, attention = 16, 24, 4, 4 * 16 * 2 * 4
    declared = transformer.declare(SMALL, 50, 40)
    encoder = 4 * attention + 2 * (e * 2 * m * h + m * e) + 2 * 2 * m * h
    decoder = 4 * attention + (e * 2 * m * h + m * e) + 2 * m * h
    norms = (4 * 2 + 1 + 2 * 3 + 1) * m
    relative = (4 + 2) * 2 * 32
    assert (
        sum(p.size for p in declared.values())
        == encoder + decoder + norms + relative + (50 + 40) * m
    )
    first = "encoder/block/moe_0/wi"
    assert declared[first].shape == (2, 4, 16, 24)
    assert declared[first].letters == "REMH"


def test_depth_must_be_a_whole_number_of_blocks():
    with pytest.raises(UserError) as error:
        dataclasses.replace(SMALL, encoder_layers=3)
    assert str(error.value) == (
        "Model.encoder_layers is 3, but a block has Model.moe_every = 2 layers; "
        "use a multiple of it, for instance 4."
    )


def test_rms_norm_ignores_scale_but_not_shift():
    x = tf.constant(np.random.default_rng(0).normal(size=(3, 16)), tf.float32)
    p = {"scale": tf.ones([16])}
    np.testing.assert_allclose(rms_norm(p, x), rms_norm(p, 7.0 * x), atol=1e-5)
    assert np.abs(rms_norm(p, x) - rms_norm(p, x + 1.0)).max() > 0.1


def test_a_decoder_alone_has_no_source_and_sees_only_the_past():
    model = dataclasses.replace(SMALL, encoder_layers=0)
    declared = transformer.declare(model, 50, 40)
    assert not [name for name in declared if "source" in name or "cross" in name]
    p, batch = parameters(model), rows([ONE], [TWO], length=8)
    moe = model.moe(training=False)
    whole = transformer.decode(model, p, None, batch, Mode(), moe)[0].numpy()
    changed = batch["target_inputs"].numpy()
    changed[:, 2] = 17
    other = {**batch, "target_inputs": tf.constant(changed)}
    again = transformer.decode(model, p, None, other, Mode(), moe)[0].numpy()
    np.testing.assert_allclose(whole[:, :2], again[:, :2], rtol=1e-5, atol=1e-6)
    assert np.abs(whole[:, 2] - again[:, 2]).max() > 1e-2


def test_rows_longer_than_the_learned_positions_are_refused():
    model = dataclasses.replace(SMALL, positions="learned", max_positions=7)
    with pytest.raises(UserError) as error:
        logits(model, parameters(model), rows([ONE], [TWO], length=8))
    assert str(error.value) == (
        "rows have 8 tokens, but Model.max_positions is 7. Set Model.max_positions to 8 or more, "
        "or use shorter rows."
    )


def test_query_times_key_has_unit_variance_at_the_start():
    """SEMANTICS 3.3: the scale is in the query's initialisation, not at run time."""
    declared = attention.declare_attention(64, 8, 16, relative=False)
    p = initial_values(declared, counter_random.Key.from_seed(tf.constant([3, 3], tf.uint32)))
    x = tf.constant(np.random.default_rng(0).normal(size=(1, 256, 64)), tf.float32)
    query = tf.einsum("BLM,MND->BLND", x, p["query"])
    keys, _ = attention.project_memory(p, x)
    products = tf.einsum("BLND,BTND->BNLT", query, keys).numpy()
    assert products.var() == pytest.approx(1.0, rel=0.15)


def test_the_gated_feed_forward_equals_its_definition():
    declared = declare_feed_forward(6, 10, "geglu")
    assert {name: p.shape for name, p in declared.items()} == {
        "wi": (6, 10),
        "wo": (10, 6),
        "wi_linear": (6, 10),
    }
    p = initial_values(declared, counter_random.Key.from_seed(tf.constant([3, 4], tf.uint32)))
    x = np.random.default_rng(1).normal(size=(1, 3, 6)).astype("f")
    a, b = x @ p["wi"].numpy(), x @ p["wi_linear"].numpy()
    gelu = 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))
    result = feed_forward(p, tf.constant(x))
    np.testing.assert_allclose(result, (gelu * b) @ p["wo"].numpy(), rtol=1e-4, atol=1e-5)


def test_parameters_are_counted_by_what_they_are_part_of():
    model = dataclasses.replace(SMALL, positions="learned")
    declared = transformer.declare(model, 50, 40)
    counts = count_by_kind(declared)
    assert sum(counts.values()) == sum(p.size for p in declared.values())
    assert counts["experts"] == 3 * 4 * 2 * 16 * 24
    assert counts["gates"] == 3 * 16 * 4
    assert counts["feed_forward"] == 3 * 2 * 16 * 24
    assert counts["attention"] == (4 + 2 + 2) * 4 * 16 * 2 * 4
    assert counts["embeddings"] == (50 + 40) * 16
    assert counts["positions"] == 2 * 8 * 16
    assert counts["norms"] == (4 * 2 + 1 + 2 * 3 + 1) * 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"stack": "rolled"},
            "Model.stack is 'rolled'; it must be one of ['unrolled', 'scan'].",
        ),
        (
            {"activation_dtype": "float16"},
            "Model.activation_dtype is 'float16'; it must be one of ['float32', 'bfloat16'].",
        ),
        (
            {"eval_second_expert": "random"},
            "Model.eval_second_expert is 'random'; it must be one of ['all', 'none', 'threshold'].",
        ),
        (
            {"positions": "learned", "max_positions": 0},
            "Model.positions is 'learned' and Model.max_positions 0; it must be the number of tokens "
            "of the longest row.",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(UserError) as error:
        dataclasses.replace(SMALL, **change)
    assert str(error.value) == message


def test_evaluation_has_a_policy_and_a_capacity_of_its_own():
    model = dataclasses.replace(
        SMALL, second_expert="random", capacity=3, eval_second_expert="threshold", eval_capacity=5
    )
    training, evaluation = model.moe(training=True).gating, model.moe(training=False).gating
    assert (training.second_expert, training.slots(100)) == ("random", 3)
    assert (evaluation.second_expert, evaluation.slots(100)) == ("threshold", 5)
