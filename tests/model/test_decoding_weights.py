"""Weights in the order and the precision of decoding."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import decoding_weights
from gshard_nmt.model.decoding_weights import SUMMED, Packed, pack, quantise
from tests.model.examples import SMALL, parameters

EQUATIONS = {
    "BKM,MND->BKND": ("MND", "M"),
    "BKND,NDM->BKM": ("NDM", "ND"),
    "BLM,MH->BLH": ("MH", "M"),
    "BLM,VM->BLV": ("VM", "M"),
    "EGCM,EMH->EGCH": ("EMH", "M"),
}
SIZES = {"B": 2, "K": 3, "L": 3, "M": 16, "N": 2, "D": 4, "H": 5, "V": 7, "E": 4, "G": 2, "C": 3}


def operands(equation: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    letters = equation.split("->")[0].split(",")
    x, weight = (rng.normal(size=[SIZES[a] for a in word]).astype("f") for word in letters)
    return x, weight


def product(packed: Packed, equation: str, x: np.ndarray, compiled: bool) -> np.ndarray:
    function = lambda values: packed.product(equation, values)  # noqa: E731
    if compiled:
        function = tf.function(function, jit_compile=True, autograph=False)
    return function(tf.constant(x)).numpy()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_a_packed_weight_gives_the_same_product(equation, compiled):
    x, weight = operands(equation)
    packed = pack(tf.constant(weight), *EQUATIONS[equation], "model")
    expected = np.einsum(equation, x, weight)
    np.testing.assert_allclose(
        product(packed, equation, x, compiled), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_bfloat16_rounds_the_operands_and_not_the_sum(equation, compiled):
    x, weight = operands(equation)
    packed = pack(tf.constant(weight), *EQUATIONS[equation], "bfloat16")
    rounded = [array.astype(ml_dtypes.bfloat16).astype(np.float64) for array in (x, weight)]
    expected = np.einsum(equation, *rounded)
    np.testing.assert_allclose(
        product(packed, equation, x, compiled), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_int8_sums_whole_numbers_and_scales_each_row_and_each_output(equation, compiled):
    x, weight = operands(equation)
    letters, summed = EQUATIONS[equation]
    packed = pack(tf.constant(weight), letters, summed, "int8")
    # Experts are a batch dimension of both operands, and nothing is summed over them.
    scales = [
        np.abs(array).max(tuple(i for i, a in enumerate(word) if a in summed), keepdims=True) / 127
        for array, word in ((x, equation.split(",")[0]), (weight, letters))
    ]
    whole = [np.round(array / scale) for array, scale in zip((x, weight), scales, strict=True)]
    assert all(np.abs(array).max() == 127 for array in whole)
    spread = np.einsum(equation, *[s * np.ones_like(a) for s, a in zip(scales, whole, strict=True)])
    count = np.prod([SIZES[a] for a in summed])
    expected = np.einsum(equation, *whole) * spread / count
    np.testing.assert_allclose(
        product(packed, equation, x, compiled), expected, rtol=1e-4, atol=1e-4
    )


def test_zeros_quantise_to_zeros():
    values, scale = quantise(tf.zeros([2, 3]), [1])
    assert not values.numpy().any()
    assert np.isfinite(scale.numpy()).all()


def test_every_matrix_of_a_block_is_packed():
    """A matrix that is forgotten would be copied in every step of a search."""
    p = parameters(SMALL)
    prepared = decoding_weights.prepare(p, "bfloat16")
    assert set(prepared) == {*p, "output_embedding"}
    for name, weight in p.items():
        if "/block/" not in name:
            assert prepared[name] is weight
            continue
        assert len(prepared[name]) == weight.shape[0]
        word = name.rpartition("/")[2]
        is_small = word in ("scale", "gate", "relative_bias")
        is_packed = all(isinstance(layer, Packed) for layer in prepared[name])
        assert is_packed == (not is_small), name
        assert (word in SUMMED) == (not is_small), name
