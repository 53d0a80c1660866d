"""Runs many small functions in one partitioned program, values and gradients, beside TensorFlow.

Each case is annotated at its inputs and its result. All cases of a table are lowered into one program
and compiled once for a mesh; the reference is the same function, run eagerly by TensorFlow on one
device. Values are ranks (0, 1, 2, ...), so that a row in the wrong place is a wrong value.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import mesh_split
from tests.multidevice.collectives import Counts, collectives

# Neither is square, and the second has no power of two.
MESHES = {
    "2x4": Mesh(("x", "y"), (2, 4), rules={"G": "y"}),
    "3x2": Mesh(("x", "y"), (3, 2), rules={"G": "y"}),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of tensors, and how it is split.

    Attributes:
      function: of tensors, gives one tensor.
      shapes: of its float32 inputs.
      split: for each input a dims_mapping, as `mesh_split` takes it.
      result: the dims_mapping of its result; None leaves it to propagation.
      indices: int32 inputs that follow the others; neither split nor differentiated.
      reference: the same function for TensorFlow to run, where it cannot run `function` eagerly.
    """

    function: Callable[..., tf.Tensor]
    shapes: Sequence[Sequence[int]]
    split: Sequence[Sequence]
    result: Sequence | None = None
    indices: Sequence[np.ndarray] = ()
    reference: Callable[..., tf.Tensor] | None = None

    def inputs(self) -> list[np.ndarray]:
        return [ranks(shape) for shape in self.shapes]


def ranks(shape: Sequence[int], start: int = 1) -> np.ndarray:
    """float32[shape]: small whole numbers, no two near ones equal; their sums are exact."""
    count = int(np.prod(shape))
    return (start + np.arange(count) % 97).reshape(shape).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of each case and the gradients of its inputs, by "case/result" and "case/0"."""

    values: Mapping[str, np.ndarray]
    program: str = ""


def unpartitioned(cases: Mapping[str, Case]) -> Outcome:
    """What TensorFlow computes eagerly."""
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
    return Outcome(values)


def partitioned(cases: Mapping[str, Case], mesh: Mesh, expected: Outcome) -> Outcome:
    """What the mesh computes, in one program."""
    arrays = {}
    for name, case in cases.items():
        arrays |= {f"{name}/{i}": x for i, x in enumerate(case.inputs())}
        arrays |= {f"{name}/indices{i}": x.astype(np.int32) for i, x in enumerate(case.indices)}
        arrays[f"{name}/seed"] = ranks(expected.values[f"{name}/result"].shape, start=3)
    specs = {name: ArraySpec(x.shape, x.dtype) for name, x in arrays.items()}

    def function(group):
        results = {}
        for name, case in cases.items():
            with tf.name_scope(scope(name)):
                results |= _traced(name, case, mesh, group)
        return [results]

    devices = runtime.start(mesh)
    program = devices.compile("cases", lambda: lower(function, [specs], [{}], mesh))
    (results,) = program(devices.put(arrays, specs))
    return Outcome({k: np.asarray(v) for k, v in results.items()}, program.executable.as_text())


def _traced(name: str, case: Case, mesh: Mesh, group: Mapping[str, tf.Tensor]) -> dict:
    inputs = [
        mesh_split(group[f"{name}/{i}"], mesh, mapping) for i, mapping in enumerate(case.split)
    ]
    indices = [group[f"{name}/indices{i}"] for i in range(len(case.indices))]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = case.function(*inputs, *indices)
        if case.result is not None:
            result = mesh_split(result, mesh, case.result)
    gradients = tape.gradient(result, inputs, group[f"{name}/seed"])
    named = {f"{name}/{i}": tf.convert_to_tensor(g) for i, g in enumerate(gradients)}
    return {f"{name}/result": result, **named}


def assert_equal(name: str, found: Outcome, expected: Outcome, rounding: float = 1e-6) -> None:
    """The result of a case and all its gradients, to the rounding of the largest element."""
    for key, value in expected.values.items():
        if key.startswith(f"{name}/"):
            atol = rounding * np.abs(value).max()
            np.testing.assert_allclose(found.values[key], value, rounding, atol, err_msg=key)


def scope(name: str) -> str:
    """A case's name as TensorFlow accepts it, and the program's operations bear it."""
    return re.sub(r"\W", "_", name)


def communication(name: str, found: Outcome, mesh: Mesh) -> Counts:
    """The collectives of one case: those whose operation was traced under its name."""
    lines = [
        line
        for line in found.program.splitlines()
        if "op_name=" not in line or f"{scope(name)}/" in line.split("op_name=")[1]
    ]
    return collectives("\n".join(lines), mesh)


def forward_collectives(case: Case, mesh: Mesh) -> Counts:
    """What one case communicates going forward, its inputs and its result split from the start."""
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
    """A function from a mesh's name to (found, expected), which computes each once."""
    expected = functools.cache(lambda: unpartitioned(cases))
    return functools.cache(lambda mesh: (partitioned(cases, MESHES[mesh], expected()), expected()))
