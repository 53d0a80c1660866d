"""The model: its parameters, packing, loss, and decoding step by step."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.errors import UserError
from gshard_nmt.model import counter_random, decoder_step, transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.loss import token_loss
from gshard_nmt.model.parameters import count, initial_values

SMALL = Model(
    encoder_layers=4, decoder_layers=2, model_dim=16, hidden_dim=24, heads=2, head_dim=4, experts=4
)
SMALL = dataclasses.replace(SMALL, num_groups=2, eval_capacity_factor=4.0, max_positions=8)
DENSE = dataclasses.replace(SMALL, experts=0)


def parameters(model: Model) -> dict:
    key = counter_random.Key.from_seed(tf.constant([1, 2], tf.uint32))
    return initial_values(transformer.declare(model, 50, 40), key)


def rows(*sentences, length: int) -> dict[str, tf.Tensor]:
    """Each argument is a row: a list of (source ids, target ids)."""
    names = ("source_ids", "source_segments", "source_positions")
    names += ("target_inputs", "target_labels", "target_segments", "target_positions")
    batch = {name: np.zeros((len(sentences), length), "i") for name in names}
    for r, row in enumerate(sentences):
        at = {"source": 0, "target": 0}
        for segment, (source, target) in enumerate(row, 1):
            for side, ids in (("source", source), ("target", target)):
                place = slice(at[side], at[side] + len(ids))
                batch[f"{side}_segments"][r, place] = segment
                batch[f"{side}_positions"][r, place] = range(len(ids))
                at[side] += len(ids)
                if side == "source":
                    batch["source_ids"][r, place] = ids
                else:
                    batch["target_labels"][r, place] = ids
                    batch["target_inputs"][r, place] = [3, *ids[:-1]]
    return {name: tf.constant(array) for name, array in batch.items()}


ONE = ([5, 6, 7, 1], [9, 8, 1])
TWO = ([11, 12, 1], [13, 14, 15, 1])


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


@pytest.mark.parametrize("model", [SMALL, DENSE])
def test_decoding_token_by_token_equals_teacher_forcing(model):
    p = parameters(model)
    batch = rows([ONE], [TWO], length=8)
    whole = tf.nn.log_softmax(logits(model, p, batch)).numpy()
    steps, beam = 4, 2
    cache = decoder_step.start(model, p, batch, beam, steps)
    for t in range(steps):
        mask = np.zeros((2, beam, beam * steps), "f")
        for past in range(t + 1):
            mask[:, range(beam), past * beam + np.arange(beam)] = 1
        ids = tf.repeat(batch["target_inputs"][:, t, tf.newaxis], beam, axis=1)
        found, cache = decoder_step.step(model, p, ids, tf.constant(mask), tf.constant(t), cache)
        for row, length in ((0, 3), (1, 4)):
            if t < length:
                expected = np.repeat(whole[row, t][np.newaxis], beam, axis=0)
                np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-4)


def test_parameters_are_those_of_the_paper_at_reduced_size():
    """Attention 4 M N D (decoder twice), experts E * 2 M H, dense 2 M H, gates M E, embeddings."""
    m, h, e, attention = 16, 24, 4, 4 * 16 * 2 * 4
    declared = transformer.declare(SMALL, 50, 40)
    encoder = 4 * attention + 2 * (e * 2 * m * h + m * e) + 2 * 2 * m * h
    decoder = 4 * attention + (e * 2 * m * h + m * e) + 2 * m * h
    norms = (4 * 2 + 1 + 2 * 3 + 1) * m
    relative = (4 + 2) * 2 * 32
    assert count(declared) == encoder + decoder + norms + relative + (50 + 40) * m
    first = "encoder/block/moe_0/wi"
    assert declared[first].shape == (2, 4, 16, 24)
    assert declared[first].letters == "REMH"


def test_the_loss_of_zero_logits_is_log_v_and_the_z_loss():
    real = tf.constant([[True, True, False]])
    found = token_loss(tf.zeros([1, 3, 7]), tf.constant([[2, 3, 0]]), real, 0.1, 1e-4)
    log_v = np.log(7)
    np.testing.assert_allclose(found.loss, log_v + 1e-4 * log_v**2, rtol=1e-6)
    np.testing.assert_allclose(found.nll, log_v, rtol=1e-6)
    assert float(found.tokens) == 2


def test_label_smoothing_equals_cross_entropy_with_the_smoothed_target():
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=(2, 3, 5)).astype("f"), rng.integers(0, 5, (2, 3), np.int32)
    found = token_loss(tf.constant(values), tf.constant(labels), tf.ones([2, 3], tf.bool), 0.2, 0.0)
    target = np.eye(5)[labels] * 0.8 + 0.2 / 5
    log_p = tf.nn.log_softmax(values).numpy()
    np.testing.assert_allclose(found.loss, -(target * log_p).sum(-1).mean(), rtol=1e-5)


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


def test_a_language_model_does_not_translate():
    model = dataclasses.replace(SMALL, encoder_layers=0)
    with pytest.raises(UserError, match="a language model has no source to translate"):
        decoder_step.start(model, parameters(model), rows([ONE], length=8), 2, 4)


def test_rows_longer_than_the_learned_positions_are_refused():
    model = dataclasses.replace(SMALL, positions="learned", max_positions=7)
    with pytest.raises(UserError) as error:
        logits(model, parameters(model), rows([ONE], [TWO], length=8))
    assert str(error.value) == (
        "rows of 8 tokens need as many positions; Model.max_positions is 7. "
        "Make it 8, or the rows shorter."
    )


def test_parameters_are_counted_by_what_they_are_part_of():
    model = dataclasses.replace(SMALL, positions="learned")
    declared = transformer.declare(model, 50, 40)
    counts = transformer.count_by_kind(declared)
    assert sum(counts.values()) == count(declared)
    assert counts["experts"] == 3 * 4 * 2 * 16 * 24
    assert counts["gates"] == 3 * 16 * 4
    assert counts["feed_forward"] == 3 * 2 * 16 * 24
    assert counts["attention"] == (4 + 2 + 2) * 4 * 16 * 2 * 4
    assert counts["embeddings"] == (50 + 40) * 16
    assert counts["positions"] == 2 * 8 * 16
    assert counts["norms"] == (4 * 2 + 1 + 2 * 3 + 1) * 16
