"""Lowering to StableHLO: values, names and order of arguments, and counted annotations."""

import subprocess
import sys

import jax
import numpy as np
import tensorflow as tf

from gshard_nmt.spmd.lowering import ArraySpec, as_jax_function, flatten, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate

F32 = np.dtype(np.float32)


def test_a_lowered_function_computes_what_tensorflow_computes():
    def function(weights, batch):
        return [
            {"y": tf.matmul(batch["x"], weights["w"]) + 1.0},
            {"sum": tf.reduce_sum(batch["x"])},
        ]

    weights = {"w": ArraySpec((3, 2), F32), "unused": ArraySpec((), F32)}
    lowered = lower(function, [weights, {"x": ArraySpec((4, 3), F32)}], [{"y": "BM"}, {}], None)
    assert [name for name, _ in flatten(lowered.signature.inputs)] == ["unused", "w", "x"]
    assert lowered.signature.outputs == (
        {"y": ArraySpec((4, 2), F32, "BM")},
        {"sum": ArraySpec((), F32)},
    )
    x, w = np.arange(12, dtype="f").reshape(4, 3), np.arange(6, dtype="f").reshape(3, 2)
    y, total = jax.jit(as_jax_function(lowered))(np.float32(0), w, x)
    np.testing.assert_array_equal(y, x @ w + 1)
    assert total == 66


def test_a_lowered_function_lists_the_annotated_activations():
    """A tensor with a name is a weight; gshard-inspect asks for the others."""

    def function(arrays):
        x = annotate(arrays["x"], "BLM")
        annotate(arrays["x"], "B?M", "weight")
        return [{"y": annotate(tf.transpose(x, [1, 0, 2]), "LBM")}]

    specs = {"x": ArraySpec((8, 5, 12), np.dtype(np.float32), "BLM")}
    lowered = lower(function, [specs], [{}], Mesh(("x", "y"), (2, 2), rules={"B": "x", "H": "y"}))
    assert lowered.annotated == {("BLM", (8, 5, 12)), ("LBM", (5, 8, 12))}


def test_tensorflow_is_imported_without_keras():
    program = (
        "import sys; from gshard_nmt.spmd import lowering; lowering.load_tensorflow(); "
        "assert not [name for name in sys.modules if name.split('.')[0] == 'keras']"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
