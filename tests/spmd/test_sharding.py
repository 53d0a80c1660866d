"""Annotations: identity in value, errors in the user's words, gradients annotated alike."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import runtime, sharding
from gshard_nmt.spmd.lowering import (
    AnnotationCount,
    ArraySpec,
    annotations_of,
    count_annotations,
    lower,
)
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
F32 = np.dtype(np.float32)
API = (
    "annotate",
    "replicate",
    "split",
    "shard",
    "mesh_split",
    "auto_to_manual",
    "manual_to_auto",
)


@pytest.mark.parametrize("name", API)
def test_the_example_of_the_docstring(name):
    mesh = Mesh(("x", "y"), (2, 4), rules={"B": "x", "G": "x", "E": "x", "H": "y"})
    names = vars(sharding) | {"annotations_of": annotations_of, "mesh": mesh, "tf": tf}
    examples = doctest.DocTestFinder().find(getattr(sharding, name), name, globs=names)
    assert examples[0].examples
    runner = doctest.DocTestRunner()
    report: list[str] = []
    runner.run(examples[0], out=report.append)
    assert runner.failures == 0, "".join(report)


def round_trip(x):
    local = auto_to_manual(x, MESH, ["x", -1], axes=["x"])
    with manual_axes("x"):
        local = annotate(local, "BH")
    return manual_to_auto(local, MESH, ["x", -1], x.shape, axes=["x"])


ANNOTATED = {
    "annotate": lambda x: annotate(x, "BH"),
    "replicate": replicate,
    "split": lambda x: split(x, 1, 2),
    "shard": lambda x: shard(x, [[3, 2], [1, 0]]),
    "mesh_split": lambda x: mesh_split(x, MESH, [-1, "y"]),
    "unspecified": lambda x: mesh_split(x, MESH, [-1, "y"], unspecified_dims=[0]),
    "manual": round_trip,
}


@pytest.mark.parametrize("name", ANNOTATED)
def test_eager_values_pass_through(name):
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    for mesh in (MESH, Mesh(("x", "y"), (1, 1), rules={"B": "x", "H": "y"}), None):
        with rules(mesh):
            np.testing.assert_array_equal(ANNOTATED[name](x), x)


@pytest.mark.parametrize("name", ANNOTATED)
def test_one_device_has_no_annotation(name):
    for mesh in (Mesh(("x", "y"), (1, 1), rules={"B": "x", "H": "y"}), None):
        assert annotations_of(ANNOTATED[name], (4, 6), mesh=mesh) == []


def test_an_annotation_names_places_in_the_programs_list_of_devices():
    """The runtime hands the devices over in the order of the mesh, so the program knows no other."""
    ordered = Mesh(("x", "y"), (2, 2), rules={"B": "x", "H": "y"}, device_order=(0, 2, 1, 3))
    (text,) = annotations_of(lambda x: annotate(x, "BH"), (4, 6), mesh=ordered)
    assert text == "{devices=[2,2]<=[4]}"
    (text,) = annotations_of(lambda x: mesh_split(x, MESH, ["x", "y"]), (4, 6), mesh=ordered)
    assert text == "{devices=[2,2]0,2,1,3}"
    (text,) = annotations_of(lambda x: shard(x, [[0, 2], [1, 3]]), (4, 6), mesh=ordered)
    assert text == "{devices=[2,2]<=[4]}"


def test_an_annotation_is_as_long_for_thousands_of_devices_as_for_four():
    mesh = Mesh(("x", "y"), (32, 64), rules={"B": "x", "H": "y"})
    (text,) = annotations_of(lambda x: annotate(x, "HB"), (64, 64), mesh=mesh)
    assert text == "{devices=[64,32]<=[32,64]T(1,0)}"
    (text,) = annotations_of(lambda x: split(x, 0, 64), (64, 64), mesh=mesh)
    assert text == "{devices=[64,1,32]<=[32,64]T(1,0) last_tile_dim_replicate}"


def test_annotations_among_manual_axes_speak_of_the_others():
    mesh = Mesh(("x", "y", "z"), (2, 2, 2), rules={"B": "x", "H": ("y", "z")})

    def inside(x):
        local = auto_to_manual(x, mesh, ["x", -1], axes=["x"])
        with manual_axes("x"):
            return manual_to_auto(annotate(local, "BH"), mesh, ["x", -1], x.shape, axes=["x"])

    texts = annotations_of(inside, (4, 8), mesh=mesh)
    assert texts == [
        "{devices=[2,1,4]<=[8] last_tile_dim_replicate} unspecified_dims=[1]",
        "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual}}",
        "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}} unspecified_dims=[0,1]",
    ]
    with rules(mesh), manual_axes("x", "y", "z"):
        assert annotations_of(lambda x: x, (4, 8), mesh=mesh) == []


@pytest.mark.parametrize("name", [name for name in ANNOTATED if name != "manual"])
def test_the_gradient_of_an_annotation_is_the_same_annotation(name):
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.square(ANNOTATED[name](tf.sin(x))))
        return tape.gradient(y, x)

    forward, backward = annotations_of(gradient, (4, 6), mesh=MESH)
    assert forward == backward


def test_annotations_are_counted_by_who_made_them():
    def gradient(group):
        with tf.GradientTape() as tape:
            tape.watch(group["x"])
            y = annotate(tf.sin(group["x"]), "BH") * 2.0
        return [{"dx": tape.gradient(y, group["x"], output_gradients=group["x"])}]

    specs = {"x": ArraySpec((4, 6), F32, "BH")}
    count = count_annotations(lower(gradient, [specs], [{}], MESH))
    assert (count.forward, count.gradient) == (1, 1)
    assert 4 <= count.tensors <= 12
    assert AnnotationCount(7, 9, 1000).share == 0.007


def test_a_lowered_program_knows_which_activations_were_annotated():
    """What has a name is a weight, and known by it; gshard-inspect asks for the others."""

    def function(arrays):
        x = annotate(arrays["x"], "BLM")
        annotate(arrays["x"], "B?M", "weight")
        return [{"y": annotate(tf.transpose(x, [1, 0, 2]), "LBM")}]

    specs = {"x": ArraySpec((8, 5, 12), np.dtype(np.float32), "BLM")}
    program = lower(function, [specs], [{}], MESH)
    assert program.annotated == {("BLM", (8, 5, 12)), ("LBM", (5, 8, 12))}


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
            "annotate(hidden, 'BLM'): the tensor has 2 dimensions and there are 3 "
            "letters; give one letter per dimension.",
        ),
        (
            lambda x: mesh_split(x, MESH, [0]),
            "mesh_split: 1 entries [0] for a tensor of 2 dimensions; give one entry per dimension, "
            "-1 if it is not split.",
        ),
        (
            lambda x: mesh_split(x, MESH, [0, "x"]),
            "mesh_split: [0, 'x'] uses a mesh axis twice; a mesh axis can split only one dimension.",
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
            lambda x: mesh_split(x, MESH, ["x", -1], unspecified_dims=[0]),
            "mesh_split: dimension 0 cannot be unspecified; in ['x', -1] only the dimensions mapped "
            "to -1 can: [1].",
        ),
        (
            lambda x: mesh_split(x, Mesh(("x",), (8,)), ["x", -1]),
            "mesh_split: this mesh has 8 devices, and the mesh of the run has 4. Every mesh in a "
            "program must have all its devices.",
        ),
        (
            lambda x: split(x, 0, 3),
            "split: 3 partitions do not divide 4 devices; allowed numbers are [1, 2, 4].",
        ),
        (
            lambda x: split(x, 0, 8),
            "split: 8 partitions do not divide 4 devices; allowed numbers are [1, 2, 4].",
        ),
        (lambda x: split(x, 0, 0), "split: 0 partitions; the smallest number is 1."),
        (
            lambda x: split(x, 2, 2),
            "split: there is no dimension 2; the tensor has the shape [4, 6], dimensions 0 to 1.",
        ),
        (
            lambda x: shard(x, [0, 1, 2, 3]),
            "shard: the device assignment has 1 dimensions (4,); it must have 2, one for each "
            "dimension of the tensor.",
        ),
        (
            lambda x: shard(x, [[0, 1], [2, 3]], replicate_last=True),
            "shard: the device assignment has 2 dimensions (2, 2); it must have 3, one for each "
            "dimension of the tensor and one of replicas.",
        ),
        (
            lambda x: shard(x, [[0, 1], [2, 2]]),
            "shard: the device assignment [[0, 1], [2, 2]] must name each of the devices 0 to 3 once.",
        ),
        (
            lambda x: shard(x, [[0, 1]]),
            "shard: the device assignment [[0, 1]] must name each of the devices 0 to 3 once.",
        ),
        (
            lambda x: shard(x, [[0.0, 1.0], [2.0, 3.0]]),
            "shard: the device assignment has dtype float64; give integers.",
        ),
        (
            lambda x: auto_to_manual(x, MESH, [("x", "y"), -1], axes=["y"]),
            "auto_to_manual: dimension 0 is split over ['x', 'y'], but only ['y'] are manual. "
            "Either all axes of a dimension must be manual, or none.",
        ),
        (
            lambda x: auto_to_manual(x, MESH, ["x", -1], axes=["z"]),
            "auto_to_manual: the mesh has no axis 'z'; its axes are ['x', 'y'].",
        ),
        (
            lambda x: manual_to_auto(x, MESH, ["x", -1], [8, 5]),
            "manual_to_auto: the tensor has the shape [4, 6]; a shard of the full shape [8, 5] has the "
            "shape [8, 5].",
        ),
        (
            lambda x: manual_axes("z").__enter__(),
            "manual_axes: the mesh has no axis 'z'; its axes are ['x', 'y'].",
        ),
    ],
)
def test_errors_to_the_letter(call, message):
    with pytest.raises(UserError) as error, rules(MESH):
        call(tf.zeros([4, 6]))
    assert str(error.value) == message


def test_what_speaks_of_all_devices_is_refused_among_manual_axes():
    with rules(MESH), manual_axes("x"):
        for call in (lambda x: split(x, 0, 2), lambda x: shard(x, [[0, 1], [2, 3]])):
            with pytest.raises(UserError, match="assigns all devices, but the axes"):
                call(tf.zeros([4, 6]))
        with pytest.raises(UserError, match="only the active mesh can be used"):
            mesh_split(tf.zeros([4, 6]), Mesh(("a",), (4,), rules={}), [-1, -1])
