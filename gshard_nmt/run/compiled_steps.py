"""The compiled programs of a training run, and the shapes they take."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.model.steps import BATCH_ARRAYS, StepFunctions
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, ArraySpecs, lower
from gshard_nmt.spmd.mesh import Mesh

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config

CONTROL = {
    "seed": ArraySpec((2,), np.dtype(np.uint32)),
    "last_step": ArraySpec((), np.dtype(np.int32)),
    "one": ArraySpec((), np.dtype(np.float32)),
}


@dataclasses.dataclass(frozen=True)
class Programs:
    """The programs of a run on its devices, each compiled when it is first asked for.

    Attributes:
      config: the run.
      steps: what the programs compute.
      devices: where.
    """

    config: "Config"
    steps: StepFunctions
    devices: runtime.Runtime

    @functools.cached_property
    def state_specs(self) -> ArraySpecs:
        """Shape, dtype and letters of every array of the state."""
        return specs_of(self.steps)

    @functools.cached_property
    def batch_specs(self) -> ArraySpecs:
        """Shape, dtype and letters of every array of a batch."""
        return batch_specs(self.config)

    @functools.cached_property
    def train(self) -> runtime.Program:
        """(state, batch, control) -> (state, metrics); the state's memory is taken over."""
        inputs = [self.state_specs, self.batch_specs, CONTROL]
        return self.compile(
            "train", self.steps.train_step, inputs, [self._letters, {}], donate=(0,)
        )

    @functools.cached_property
    def evaluate(self) -> runtime.Program:
        """(parameters, batch) -> (nll_sum, tokens)."""
        parameters = self.parameters_of(self.state_specs)
        return self.compile("evaluate", self.steps.eval_step, [parameters, self.batch_specs], [{}])

    def initialize(self) -> dict:
        """The state of step 0, drawn on the devices."""
        program = self.compile("initialize", self.steps.initialize, [CONTROL], [self._letters])
        (state,) = program(self.control(last_step=1))
        return state

    def control(self, last_step: int) -> dict:
        """The scalars of a training step."""
        values = {
            "seed": np.array([self.config.train.seed, 0], np.uint32),
            "last_step": np.array(last_step, np.int32),
            "one": np.array(1.0, np.float32),
        }
        return self.devices.put(values, CONTROL)

    @staticmethod
    def parameters_of(state: Mapping[str, Any]) -> dict[str, Any]:
        """The model's weights among the arrays (or specs) of a state, by their own names."""
        prefix = "parameters/"
        return {k[len(prefix) :]: v for k, v in state.items() if k.startswith(prefix)}

    @property
    def _letters(self) -> dict[str, str]:
        return {name: spec.letters for name, spec in self.state_specs.items()}

    def compile(self, name: str, function: Callable, inputs, letters, donate=()) -> runtime.Program:
        """A function of the steps as a program, which the cache knows by its name."""
        rows, lengths = self.config.data.rows, _lengths(self.config)
        key = json.dumps([name, repr(self.steps), rows, lengths])
        mesh = self.devices.mesh
        return self.devices.compile(key, lambda: lower(function, inputs, letters, mesh), donate)


def specs_of(steps: StepFunctions) -> dict[str, ArraySpec]:
    """Shape, dtype and letters of every array of the training state."""
    return {
        name: ArraySpec(p.shape, np.dtype(p.dtype), p.letters)
        for name, p in steps.declare_state().items()
    }


def batch_specs(config: "Config") -> dict[str, ArraySpec]:
    """Shape, dtype and letters of every array of a batch."""
    source, target = _lengths(config)
    return {
        name: ArraySpec(
            (config.data.rows, source if name.startswith("source") else target),
            np.dtype(np.int32),
            "BL",
        )
        for name in BATCH_ARRAYS
    }


def _lengths(config: "Config") -> tuple[int, int]:
    return config.data.source_length, config.data.target_length


def check_fits_mesh(config: "Config") -> None:
    """Raises UserError where rows, experts or groups do not divide, with the nearest legal values."""
    model, mesh, rows = config.model, config.mesh, config.data.rows
    mesh.check_divides("Data.rows", "B", (rows,))
    if not model.experts:
        return
    mesh.check_divides("Model.experts", "E", (model.experts,))
    for what, length in (
        ("Data.source_length", config.data.source_length if model.encoder_layers else 0),
        ("Data.target_length", config.data.target_length),
    ):
        if length:
            try:
                groups = model.moe(training=True).groups(rows, length)
            except UserError as error:
                raise UserError(f"Data.rows and {what}: {error}") from None
            name = "Model.num_groups" if not model.group_size else f"groups of {what}"
            mesh.check_divides(name, "G", (groups,))


def parameter_table(specs: ArraySpecs, mesh: Mesh) -> str:
    """Name, shape, dtype, sharding and bytes of every array, and totals, as aligned text."""
    rows = [("name", "shape", "dtype", "sharding", "bytes", "bytes/device")]
    total = per_device = 0
    for name, spec in sorted(specs.items()):
        partition = mesh.partition(spec.letters, name)
        shards = int(np.prod([mesh.axis_size(axes) for axes in partition]))
        split = ",".join("*".join(axes) or "-" for axes in partition)
        total, per_device = total + spec.nbytes, per_device + spec.nbytes // shards
        shape = "x".join(map(str, spec.shape)) or "scalar"
        sharding = f"{spec.letters or '-'} [{split}]"
        rows.append(
            (name, shape, str(spec.dtype), sharding, str(spec.nbytes), str(spec.nbytes // shards))
        )
    rows.append(("total", "", "", "", str(total), str(per_device)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines) + "\n"
