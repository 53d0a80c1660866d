"""The weights of a model as decoding reads them."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import decoding_weights
from gshard_nmt.model.decoding_weights import SUMMED
from gshard_nmt.model.products import Packed
from tests.model.examples import SHARED, SMALL, declared, parameters, read_weights


def test_every_matrix_of_a_block_is_packed_or_is_of_experts():
    """A matrix that is forgotten would be copied in every step of a search."""
    p = parameters(SHARED)
    prepared = read_weights(SHARED, p, "bfloat16")
    assert set(prepared) == {*p, "output_embedding"}
    for name, weight in p.items():
        if "/block/" not in name:
            np.testing.assert_array_equal(prepared[name], weight)
            continue
        assert len(prepared[name]) == weight.shape[0]
        word = name.rpartition("/")[2]
        is_small = word in ("scale", "gate", "relative_bias")
        assert (word in SUMMED) == (not is_small), name
        for layer in prepared[name]:
            if isinstance(layer, Packed):
                assert layer.values.dtype == tf.bfloat16
            else:
                is_expert = "moe_" in name and "/shared/" not in name
                assert is_small or (is_expert and layer.dtype == tf.bfloat16), name


def test_an_encoder_that_is_a_loop_keeps_its_stacks():
    p = parameters(SMALL)
    prepared = read_weights(dataclasses.replace(SMALL, stack="scan"), p, "model")
    for name in p:
        if name.startswith("encoder/"):
            np.testing.assert_array_equal(prepared[name], p[name])
    assert isinstance(prepared["decoder/block/self_attention_0/query"], list)


@pytest.mark.parametrize("precision", ["model", "bfloat16"])
def test_the_arrays_are_those_that_the_plan_announces(precision):
    pieces = decoding_weights.plan(SMALL, declared(SMALL), precision)
    arrays = decoding_weights.prepare(pieces, parameters(SMALL))
    assert set(arrays) == set(pieces)
    for name, array in arrays.items():
        piece = pieces[name]
        assert (array.shape.as_list(), array.dtype) == (list(piece.shape), piece.dtype), name
        assert len(piece.letters) == len(piece.shape), name
