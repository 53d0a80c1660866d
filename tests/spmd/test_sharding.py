"""Annotations: identity in value, errors in the user's words, gradients annotated alike."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import sharding, shared_update
from gshard_nmt.spmd.lowering import annotations_of
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import (
    annotate,
    auto_to_manual,
    manual_axes,
    manual_to_auto,
    mesh_split,
    replicate,
    rules,
    shard,
    split,
)

MESH = Mesh(("x", "y"), (2, 2), rules={"B": "x", "H": "y"})
API = (
    "annotate",
    "replicate",
    "split",
    "shard",
    "mesh_split",
    "annotate_gradient",
    "auto_to_manual",
    "manual_to_auto",
)


@pytest.mark.parametrize(
    "function", [*(getattr(sharding, name) for name in API), shared_update.divided]
)
def test_the_example_of_the_docstring(function):
    mesh = Mesh(("x", "y"), (2, 4), rules={"B": "x", "G": "x", "E": "x", "H": "y"})
    names = vars(sharding) | vars(shared_update)
    names |= {"annotations_of": annotations_of, "mesh": mesh, "tf": tf}
    examples = doctest.DocTestFinder().find(function, "it", globs=names)
    assert examples[0].examples
    runner = doctest.DocTestRunner()
    report: list[str] = []
    runner.run(examples[0], out=report.append)
    assert runner.failures == 0, "".join(report)


ANNOTATED = {
    "annotate": lambda x: annotate(x, "BH"),
    "replicate": replicate,
    "split": lambda x: split(x, 1, 2),
    "shard": lambda x: shard(x, [[3, 2], [1, 0]]),
    "mesh_split": lambda x: mesh_split(x, MESH, [-1, "y"]),
    "unspecified": lambda x: mesh_split(x, MESH, [-1, "y"], unspecified_dims=[0]),
}


@pytest.mark.parametrize("name", ANNOTATED)
def test_eager_values_pass_through(name):
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    for mesh in (MESH, Mesh(("x", "y"), (1, 1), rules={"B": "x", "H": "y"}), None):
        with rules(mesh):
            np.testing.assert_array_equal(ANNOTATED[name](x), x)


@pytest.mark.parametrize("name", ANNOTATED)
def test_the_gradient_of_an_annotation_is_the_same_annotation(name):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.square(ANNOTATED[name](tf.sin(x))))
        return tape.gradient(y, x)

    forward, backward = annotations_of(gradient, (4, 6), mesh=MESH)
    assert forward == backward


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: annotate(x, "BLM", "hidden"),
            "annotate(hidden, 'BLM'): the tensor has 2 dimensions and there are 3 "
            "letters; give one letter per dimension.",
        ),
        (lambda x: mesh_split(x, MESH, [0, "x"]),
         "mesh_split: [0, 'x'] uses a mesh axis twice; a mesh axis can split only one dimension."),
        (lambda x: mesh_split(x, MESH, ["z", -1]),
         "mesh_split: the mesh has no axis 'z'; its axes are ['x', 'y']."),
        (
            lambda x: mesh_split(x, MESH, ["x", -1], unspecified_dims=[0]),
            "mesh_split: dimension 0 cannot be unspecified; in ['x', -1] only the dimensions mapped "
            "to -1 can: [1].",
        ),
        (lambda x: split(x, 0, 3),
         "split: 3 partitions do not divide 4 devices; allowed numbers are [1, 2, 4]."),
        (lambda x: split(x, 2, 2),
         "split: there is no dimension 2; the tensor has the shape [4, 6], dimensions 0 to 1."),
        (
            lambda x: shard(x, [[0, 1], [2, 3]], replicate_last=True),
            "shard: the device assignment has 2 dimensions (2, 2); it must have 3, one for each "
            "dimension of the tensor and one of replicas.",
        ),
        (
            lambda x: auto_to_manual(x, MESH, [("x", "y"), -1], axes=["y"]),
            "auto_to_manual: dimension 0 is split over ['x', 'y'], but only ['y'] are manual. "
            "Either all axes of a dimension must be manual, or none.",
        ),
        (lambda x: auto_to_manual(x, MESH, ["x", -1], axes=["z"]),
         "auto_to_manual: the mesh has no axis 'z'; its axes are ['x', 'y']."),
        (
            lambda x: manual_to_auto(x, MESH, ["x", -1], [8, 5]),
            "manual_to_auto: the tensor has the shape [4, 6]; a shard of the full shape [8, 5] has the "
            "shape [8, 5].",
        ),
        (lambda x: manual_axes("z").__enter__(),
         "manual_axes: the mesh has no axis 'z'; its axes are ['x', 'y']."),
    ],
)  # fmt: skip
def test_errors_to_the_letter(call, message):
    with pytest.raises(UserError) as error, rules(MESH):
        call(tf.zeros([4, 6]))
    assert str(error.value) == message
