"""Compiles a function for a mesh, so that a test can look at its values and at its program."""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gshard_nmt.model.parameters import scoped
from gshard_nmt.model.steps import BATCH_ARRAYS, StepFunctions
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, ArraySpecs, lower
from gshard_nmt.spmd.mesh import Mesh
from tests.multidevice.collectives import instructions_of
from tests.multidevice.partitioning import ranks


def control(seed: int = 1) -> dict[str, np.ndarray]:
    """Returns the last argument of a training step, in a run of 100 steps."""
    return {
        "seed": np.array([seed, 0], np.uint32),
        "max_steps": np.array(100, np.int32),
        "max_tokens": np.array([0, 0], np.uint32),
        "one": np.array(1.0, np.float32),
    }


def batch_specs(rows: int, length: int) -> dict[str, ArraySpec]:
    """Returns the specs of the arrays of a batch: int32[B, L] each."""
    return {name: ArraySpec((rows, length), np.dtype(np.int32), "BL") for name in BATCH_ARRAYS}


class Watched(StepFunctions):
    """Step functions whose metrics have the gradients too."""

    def gradients(self, *arguments):
        gradients, metrics = super().gradients(*arguments)
        return gradients, metrics | scoped("gradients", gradients)


class Compiled:
    """A function of groups of arrays, compiled for a mesh: its `program`, and the `text` of it."""

    def __init__(
        self,
        function: Callable[..., Sequence[Mapping]],
        inputs: Sequence[ArraySpecs],
        letters: Sequence[Mapping[str, str]],
        mesh: Mesh,
        donate: Sequence[int] = (),
    ) -> None:
        self.inputs, self.devices = inputs, runtime.start(mesh)
        self.program = self.devices.compile(
            "function", lambda: lower(function, inputs, letters, mesh), donate
        )
        self.text = self.program.executable.as_text()

    def put(self, *groups: Mapping[str, np.ndarray]) -> list[dict]:
        """Places its arguments on the devices."""
        return [self.devices.put(*group) for group in zip(groups, self.inputs, strict=True)]

    def __call__(self, *groups: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """Returns the groups of its results, as the host has them."""
        return [self.devices.fetch(group) for group in self.program(*self.put(*groups))]


class CompiledFunction(Compiled):
    """A function of one or more float32 tensors, compiled for a mesh."""

    def __init__(self, function, *shapes, mesh, letters=""):
        specs = {
            f"a{i}": ArraySpec(tuple(shape), np.dtype(np.float32)) for i, shape in enumerate(shapes)
        }

        def flat(group):
            results = function(*(group[name] for name in sorted(group)))
            results = results if isinstance(results, list | tuple) else [results]
            return [{f"r{i}": result for i, result in enumerate(results)}]

        super().__init__(flat, [specs], [{"r0": letters}], mesh)

    def __call__(self):
        """Returns the results for inputs from `ranks`, as sharded arrays."""
        values = {name: ranks(spec.shape) for name, spec in self.inputs[0].items()}
        (results,) = self.program(*self.put(values))
        return [results[name] for name in sorted(results)]

    def shapes_of(self, opcode: str) -> set[str]:
        """Returns the shapes, on one device, of all instructions with this opcode."""
        return {
            re.sub(r"\{.*", "", instruction.shape)
            for instruction in instructions_of(self.text)
            if instruction.opcode == opcode
        }
