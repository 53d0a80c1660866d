"""Compiles one function for a mesh, so that a test can look at its values and at its program."""

import re

import numpy as np

from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
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


class CompiledFunction:
    """A function of one or more float32 tensors, compiled for a mesh."""

    def __init__(self, function, *shapes, mesh, letters=""):
        self.mesh, self.devices = mesh, runtime.start(mesh)
        self.specs = {
            f"a{i}": ArraySpec(tuple(shape), np.dtype(np.float32)) for i, shape in enumerate(shapes)
        }

        def flat(group):
            results = function(*(group[name] for name in sorted(group)))
            results = results if isinstance(results, list | tuple) else [results]
            return [{f"r{i}": result for i, result in enumerate(results)}]

        self.program = self.devices.compile(
            "function", lambda: lower(flat, [self.specs], [{"r0": letters}], mesh)
        )
        self.text = self.program.executable.as_text()

    def __call__(self):
        """Returns the results for inputs from `ranks`, as sharded arrays."""
        values = {name: ranks(spec.shape) for name, spec in self.specs.items()}
        (results,) = self.program(self.devices.put(values, self.specs))
        return [results[name] for name in sorted(results)]

    def shapes_of(self, opcode: str) -> set[str]:
        """Returns the shapes, on one device, of all instructions with this opcode."""
        return {
            re.sub(r"\{.*", "", instruction.shape)
            for instruction in instructions_of(self.text)
            if instruction.opcode == opcode
        }
