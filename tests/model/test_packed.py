"""Products with weights that were packed, in float32 and bfloat16."""

import functools

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model.decoding_weights import Piece
from gshard_nmt.model.parameters import ZEROS, Parameter
from gshard_nmt.model.products import low_precision_product

EQUATIONS = {
    "BKM,MND->BKND": ("MND", "M"),
    "BKND,NDM->BKM": ("NDM", "ND"),
    "BLM,MH->BLH": ("MH", "M"),
    "BLM,VM->BLV": ("VM", "M"),
}
SIZES = {"B": 2, "K": 3, "L": 3, "M": 16, "N": 2, "D": 4, "H": 5, "V": 7, "E": 4}


def operands(equation: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    letters = equation.split("->")[0].split(",")
    x, weight = (rng.normal(size=[SIZES[a] for a in word]).astype("f") for word in letters)
    return x, weight


def result_of(function, x: np.ndarray, compiled: bool) -> tf.Tensor:
    if compiled:
        function = tf.function(function, jit_compile=True, autograph=False)
    return function(tf.constant(x))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_packed_weight_gives_the_product_of_rounded_operands_and_no_rounded_sum(
    dtype, equation, compiled
):
    x, weight = operands(equation)
    letters, summed = EQUATIONS[equation]
    piece = Piece("w", None, Parameter(weight.shape, letters, ZEROS), summed, dtype)
    packed = piece.for_model(piece.of(tf.constant(weight)))
    # NumPy knows bfloat16 by ml_dtypes.
    rounded = [array.astype(np.dtype(dtype)).astype(np.float64) for array in (x, weight)]
    expected = np.einsum(equation, *rounded)
    result = result_of(functools.partial(packed.product, equation), x, compiled)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("equation", ["EBM,EMH->EBH", "BM,MH->BH", "BLM,MND->BLND"])
def test_a_product_in_low_precision_sums_in_float32(equation, compiled):
    x, weight = operands(equation)
    rounded = tf.constant(weight.astype(ml_dtypes.bfloat16))
    result = result_of(lambda x: low_precision_product(equation, x, rounded), x, compiled)
    assert result.dtype == tf.float32
    exact = [array.astype(ml_dtypes.bfloat16).astype(np.float64) for array in (x, weight)]
    np.testing.assert_allclose(result.numpy(), np.einsum(equation, *exact), rtol=1e-5, atol=1e-5)
