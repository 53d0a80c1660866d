"""Compares many small functions, and their gradients, on a mesh and in TensorFlow on one device.

The inputs and the result of each case are annotated. All cases of a table become one program, which is
compiled once for each mesh. The reference is the same function, run eagerly by TensorFlow. Values are
small whole numbers in sequence, so a row in the wrong place is a wrong value.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import mesh_split
from tests.multidevice.collectives import Counts, collectives

# Neither mesh is square, and the number of devices of the second is not a power of two.
MESHES = {
    "2x4": Mesh(("x", "y"), (2, 4), rules={"G": "y"}),
    "3x2": Mesh(("x", "y"), (3, 2), rules={"G": "y"}),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of tensors, and how its inputs and its result are split."""

    function: Callable[..., tf.Tensor]
    """Takes tensors and returns one tensor."""
    shapes: Sequence[Sequence[int]]
    """The shapes of its float32 inputs."""
    split: Sequence[Sequence]
    """The dims_mapping of each input, as for `mesh_split`."""
    result: Sequence | None = None
    """The dims_mapping of the result; None leaves it to propagation."""
    indices: Sequence[np.ndarray] = ()
    """int32 inputs that follow the others. They are neither split nor differentiated."""
    reference: Callable[..., tf.Tensor] | None = None
    """The same function for TensorFlow, if TensorFlow cannot run `function` eagerly."""

    def inputs(self) -> list[np.ndarray]:
        return [ranks(shape) for shape in self.shapes]


def ranks(shape: Sequence[int], start: int = 1) -> np.ndarray:
    """Returns float32[shape] that counts from `start` up, 97 numbers in turn, so that sums are exact."""
    return (start + np.arange(int(np.prod(shape))) % 97).reshape(shape).astype(np.float32)


Outcome = Mapping[str, np.ndarray]
"""The result of each case and the gradients of its inputs, by "case/result" and "case/0"."""


def unpartitioned(cases: Mapping[str, Case]) -> Outcome:
    """Computes all cases with TensorFlow, eagerly."""
    values = {}
    for name, case in cases.items():
        inputs = [tf.constant(x) for x in case.inputs()]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            result = (case.reference or case.function)(*inputs, *map(tf.constant, case.indices))
        gradients = tape.gradient(result, inputs, tf.constant(ranks(result.shape, start=3)))
        values[f"{name}/result"] = result.numpy()
        for i, gradient in enumerate(gradients):
            values[f"{name}/{i}"] = tf.convert_to_tensor(gradient).numpy()
    return values


def partitioned(cases: Mapping[str, Case], mesh: Mesh, expected: Outcome) -> Outcome:
    """Computes all cases on the mesh, in one program."""
    arrays = {}
    for name, case in cases.items():
        arrays |= {f"{name}/{i}": x for i, x in enumerate(case.inputs())}
        arrays |= {f"{name}/indices{i}": x.astype(np.int32) for i, x in enumerate(case.indices)}
        arrays[f"{name}/seed"] = ranks(expected[f"{name}/result"].shape, start=3)
    specs = {name: ArraySpec(x.shape, x.dtype) for name, x in arrays.items()}

    def function(group):
        results = {}
        for name, case in cases.items():
            results |= _traced(name, case, mesh, group)
        return [results]

    devices = runtime.start(mesh)
    program = devices.compile("cases", lambda: lower(function, [specs], [{}], mesh))
    (results,) = program(devices.put(arrays, specs))
    return {k: np.asarray(v) for k, v in results.items()}


def _traced(name: str, case: Case, mesh: Mesh, group: Mapping[str, tf.Tensor]) -> dict:
    inputs = [mesh_split(group[f"{name}/{i}"], mesh, m) for i, m in enumerate(case.split)]
    indices = [group[f"{name}/indices{i}"] for i in range(len(case.indices))]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = case.function(*inputs, *indices)
        if case.result is not None:
            result = mesh_split(result, mesh, case.result)
    gradients = tape.gradient(result, inputs, group[f"{name}/seed"])
    named = {f"{name}/{i}": tf.convert_to_tensor(g) for i, g in enumerate(gradients)}
    return {f"{name}/result": result, **named}


def assert_equal(name: str, actual: Outcome, expected: Outcome) -> None:
    """Compares the result and the gradients of a case, up to the rounding of the largest element."""
    for key, value in expected.items():
        if key.startswith(f"{name}/"):
            atol = 1e-6 * np.abs(value).max()
            np.testing.assert_allclose(actual[key], value, 1e-6, atol, err_msg=key)


def forward_collectives(case: Case, mesh: Mesh) -> Counts:
    """Counts the collectives of the forward pass of a case whose arguments and result are split."""
    entries = [*case.split, case.result]
    arrays = {str(i): entry for i, entry in enumerate(entries[:-1])} | {"result": case.result}
    split = dataclasses.replace(
        mesh,
        overrides={
            name: [None if axis == -1 else axis for axis in entry] for name, entry in arrays.items()
        },
    )
    specs = {
        str(i): ArraySpec(tuple(shape), np.dtype(np.float32), "_" * len(shape))
        for i, shape in enumerate(case.shapes)
    }

    def function(group):
        inputs = [mesh_split(group[str(i)], mesh, entry) for i, entry in enumerate(case.split)]
        return [{"result": mesh_split(case.function(*inputs), mesh, case.result)}]

    letters = {"result": "_" * len(case.result)}
    devices = runtime.start(split)
    program = devices.compile("case", lambda: lower(function, [specs], [letters], split))
    return collectives(program.executable.as_text(), mesh)


def table(cases: Mapping[str, Case]):
    """Returns a function from the name of a mesh to (actual, expected), which computes each once."""
    expected = functools.cache(lambda: unpartitioned(cases))
    return functools.cache(lambda mesh: (partitioned(cases, MESHES[mesh], expected()), expected()))
