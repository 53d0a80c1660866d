"""The Transformer: its parameters, packed rows, positions and settings."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import transformer
from gshard_nmt.model.config import POSITIONS, Model
from gshard_nmt.model.layers import Mode
from tests.model.examples import DENSE, FOREIGN, MIXED, ONE, POST_NORM, SMALL, TWO, parameters, rows


def logits(model: Model, p, batch):
    return transformer.encode_and_decode(model, p, batch, Mode())[0].numpy()


MODELS = [
    dataclasses.replace(model, positions=name)
    for model in (SMALL, DENSE, MIXED)
    for name in POSITIONS
]


@pytest.mark.parametrize("model", [*MODELS, FOREIGN, POST_NORM])
def test_packed_sentences_get_the_logits_that_they_get_alone(model):
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


def test_the_initial_scale_is_the_variance_of_matrices_and_of_nothing_else():
    small = transformer.declare(dataclasses.replace(SMALL, initial_scale=0.01), 50, 40)
    for name, p in transformer.declare(SMALL, 50, 40).items():
        is_matrix = not name.endswith(("embedding", "relative_bias", "norm/scale"))
        factor = 0.1 if is_matrix else 1.0
        assert small[name].initializer.scale == pytest.approx(factor * p.initializer.scale), name
    assert small["encoder/block/moe_0/gate"].initializer.scale == pytest.approx(
        0.1 * (3 / 16) ** 0.5
    )


def test_a_decoder_alone_has_no_source_and_sees_only_the_past():
    model = dataclasses.replace(SMALL, encoder_layers=0)
    declared = transformer.declare(model, 50, 40)
    assert not [name for name in declared if "source" in name or "cross" in name]
    p, batch = parameters(model), rows([ONE], [TWO], length=8)
    whole = transformer.decode(model, p, None, batch, Mode())[0].numpy()
    changed = batch["target_inputs"].numpy()
    changed[:, 2] = 17
    other = {**batch, "target_inputs": tf.constant(changed)}
    again = transformer.decode(model, p, None, other, Mode())[0].numpy()
    np.testing.assert_allclose(whole[:, :2], again[:, :2], rtol=1e-5, atol=1e-6)
    assert np.abs(whole[:, 2] - again[:, 2]).max() > 1e-2
