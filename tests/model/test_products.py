"""Products in bfloat16: their values and gradients, their kernels, and which run has them."""

import re

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import products
from gshard_nmt.spmd import machine
from gshard_nmt.spmd.mesh import Mesh
from tests.multidevice.compiled_function import CompiledFunction

SIZES = {"B": 4, "L": 6, "T": 5, "M": 16, "H": 12, "N": 2, "D": 8, "V": 40, "E": 4, "G": 2, "C": 3}
EQUATIONS = (
    "BLM,MND->BLND",
    "BLND,NDM->BLM",
    "BLM,MH->BLH",
    "BLM,VM->BLV",
    "EGCM,EMH->EGCH",
    "BLND,BTND->BNLT",
    "BNLT,BTND->BLND",
)


def operands(equation: str, dtype: str) -> list[tf.Tensor]:
    """Returns both operands and the gradient of the result, exact in bfloat16."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=[SIZES[a] for a in word]) for word in re.split(r",|->", equation)]
    return [tf.constant(a.astype(ml_dtypes.bfloat16).astype(dtype)) for a in arrays]


def with_gradients(equation: str, x: tf.Tensor, y: tf.Tensor, dz: tf.Tensor):
    multiply = products.product_of_activations if "T" in equation else products.product
    with products.precision("bfloat16"), tf.GradientTape() as tape:
        tape.watch([x, y])
        z = multiply(equation, x, y)
    return [z, *tape.gradient(z, [x, y], output_gradients=dz)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_values_and_gradients_are_those_of_float64_if_the_operands_are_exact(equation, compiled):
    expected = with_gradients(equation, *operands(equation, "float64"))
    function = lambda *given: with_gradients(equation, *given)  # noqa: E731
    if compiled:
        function = tf.function(function, jit_compile=True, autograph=False)
    for result, exact in zip(function(*operands(equation, "float32")), expected, strict=True):
        assert result.dtype == tf.float32
        np.testing.assert_allclose(result, exact, rtol=1e-5, atol=1e-5)


def test_operands_are_rounded_and_sums_are_not():
    """Each of 257 terms is (1 + 2**-9)**2. The operands round to 1, and bfloat16 has no 257."""
    x, weight = tf.fill([1, 257], 1 + 2.0**-9), tf.fill([257, 1], 1 + 2.0**-9)
    with products.precision("bfloat16"):
        assert products.product("BM,MH->BH", x, weight).numpy() == 257
    assert products.product("BM,MH->BH", x, weight).numpy() > 257.9


def test_activations_in_bfloat16_keep_the_gradients_of_weights_in_float32():
    x, weight, dz = operands("BLM,MH->BLH", "float32")
    x, dz = tf.cast(x, tf.bfloat16), tf.cast(dz, tf.bfloat16)
    z, dx, dw = with_gradients("BLM,MH->BLH", x, weight, dz)
    assert (z.dtype, dx.dtype, dw.dtype) == (tf.bfloat16, tf.bfloat16, tf.float32)


@pytest.mark.parametrize("equation", ["BLM,MH->BLH", "BLM,VM->BLV", "EGCM,EMH->EGCH"])
def test_each_product_of_a_layer_and_of_its_gradients_has_a_fast_kernel(equation):
    """If a new jaxlib has no kernel for one of them, a step takes twice as long."""
    sizes = {**SIZES, "B": 8, "L": 32, "M": 64, "H": 128, "V": 512, "C": 64}
    shapes = [[sizes[a] for a in word] for word in re.split(r",|->", equation)]
    function = CompiledFunction(
        lambda *given: with_gradients(equation, *given), *shapes, mesh=Mesh(("x",), (1,))
    )
    by_library = set(re.findall(r"calls=%([\w.]+).*__ynn_fusion", function.text))
    computations = re.split(r"\n(?=%|ENTRY )", function.text)
    dots = [text[1:].split(" ")[0] for text in computations for _ in re.findall(r" dot\(", text)]
    assert len(dots) == 3
    assert set(dots) <= by_library


@pytest.mark.parametrize(
    ("platform", "flags", "expected"),
    [("cpu", "avx2 avx512_bf16", True), ("cpu", "avx512f", False), ("tpu", "avx512_bf16", False)],
)
def test_a_cpu_with_instructions_for_bfloat16_is_recognized(
    platform, flags, expected, monkeypatch, tmp_path
):
    monkeypatch.setenv("JAX_PLATFORMS", platform)
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : fpu {flags}\n")
    monkeypatch.setattr(machine, "CPU_FACTS", tmp_path / "cpuinfo")
    assert machine.multiplies_bfloat16() is expected
