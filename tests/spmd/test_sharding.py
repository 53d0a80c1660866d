"""Annotations: identity in value, errors in the user's words, gradients annotated alike."""

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate, mesh_split, replicate, rules, split

MESH = Mesh(("x", "y"), (2, 2), rules={"B": "x", "H": "y"})
F32 = np.dtype(np.float32)


def stablehlo(function, *specs, mesh=MESH) -> str:
    tensors = [tf.TensorSpec(shape, tf.float32) for shape in specs]
    with rules(mesh):
        compiled = tf.function(function, jit_compile=True, autograph=False)
        ir = compiled.experimental_get_compiler_ir(*tensors)
        return ir(stage="stablehlo", platform_name="CPU")


def test_eager_values_pass_through():
    x = tf.constant([[1.0, 2.0]])
    with rules(MESH):
        for annotated in (
            annotate(x, "BH"),
            replicate(x),
            split(x, 1, 2, 4),
            mesh_split(x, MESH, [-1, "y"]),
        ):
            np.testing.assert_array_equal(annotated, x)


def test_annotations_reach_the_lowered_program():
    text = stablehlo(lambda x: annotate(x, "BH") + 1.0, (4, 6))
    assert '"{devices=[2,2]0,1,2,3}"' in text
    text = stablehlo(lambda x: mesh_split(x, MESH, [-1, 1]) + 1.0, (4, 6))
    assert '"{devices=[1,2,2]0,2,1,3 last_tile_dim_replicate}"' in text
    text = stablehlo(lambda x: split(x, 0, 2, 4) + 1.0, (4, 6))
    assert '"{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"' in text
    text = stablehlo(lambda x: replicate(x) + 1.0, (4, 6))
    assert '"{replicated}"' in text


def test_the_gradient_of_an_annotation_is_the_same_annotation():
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.square(annotate(tf.sin(x), "BH")))
        return tape.gradient(y, x)

    assert stablehlo(gradient, (4, 6)).count('"{devices=[2,2]0,1,2,3}"') == 2


def test_a_contraction_over_a_split_dimension_is_one_all_reduce():
    mesh = Mesh(("x",), (2,), rules={"H": "x"})
    inputs = [{"a": ArraySpec((4, 8), F32, "BH"), "b": ArraySpec((8, 4), F32, "HM")}]

    def product(group):
        a, b = annotate(group["a"], "BH"), annotate(group["b"], "HM")
        return [{"c": tf.einsum("BH,HM->BM", a, b)}]

    devices = runtime.start(mesh)
    program = devices.compile("product", lambda: lower(product, inputs, [{}], mesh))
    counts = program.collectives()
    assert counts["all-reduce"] == 1
    assert sum(counts.values()) == 1
    rng = np.random.default_rng(0)
    values = {k: rng.normal(size=s.shape).astype("f") for k, s in inputs[0].items()}
    (result,) = program(devices.put(values, inputs[0]))
    np.testing.assert_allclose(result["c"], values["a"] @ values["b"], rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: annotate(x, "BLM", "hidden"),
            "annotate(hidden, 'BLM'): the tensor has 2 dimensions, the letters name 3; "
            "give one letter a dimension.",
        ),
        (
            lambda x: mesh_split(x, MESH, [0]),
            "mesh_split: 1 entries [0] for a tensor of 2 dimensions; give one entry a dimension, "
            "-1 where it is not split.",
        ),
        (
            lambda x: mesh_split(x, MESH, [0, "x"]),
            "mesh_split: [0, 'x'] uses a mesh axis twice; each may split one dimension.",
        ),
        (
            lambda x: mesh_split(x, MESH, [2, -1]),
            "mesh_split: mesh axis 2 does not exist; the mesh has axes 0 to 1 ['x', 'y'], "
            "and -1 means not split.",
        ),
        (
            lambda x: mesh_split(x, MESH, ["z", -1]),
            "mesh_split: the mesh has no axis 'z'; its axes are ['x', 'y'].",
        ),
        (
            lambda x: split(x, 0, 3, 4),
            "split: 3 partitions do not divide 4 devices; legal numbers are [1, 2, 4].",
        ),
    ],
)
def test_errors_to_the_letter(call, message):
    with pytest.raises(UserError) as error, rules(MESH):
        call(tf.zeros([4, 6]))
    assert str(error.value) == message
