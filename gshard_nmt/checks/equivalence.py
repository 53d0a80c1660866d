"""A config on one device and on a mesh: do both compute the same?

The config keeps its structure (which layers, which routing, which mesh axes and rules) and loses its
size, so that both run on this machine's CPU in a minute. Loss and gradients of one step are compared
tensor by tensor, each repeat of a stacked block for itself.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.run.compiled_steps import CONTROL, Programs, specs_of
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.mesh import Mesh

if TYPE_CHECKING:
    from gshard_nmt.model.steps import StepFunctions
    from gshard_nmt.settings.config import Config

TOLERANCE = 5e-5
"""Largest difference in a tensor over its largest value: sums of a few hundred terms in another order.
Measured on the demo: 1e-6."""

LENGTH = 16
VOCABULARY = 320


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One tensor on both.

    Attributes:
      name: of the weight whose gradient it is, with the repeat of its block; or "loss".
      difference: the largest, over the largest value on one device.
      tolerance: what is allowed.
    """

    name: str
    difference: float
    tolerance: float

    @property
    def is_equal(self) -> bool:
        """Within the tolerance; not so where either is not a number."""
        return self.difference <= self.tolerance


def reduced_mesh(mesh: Mesh, devices: int) -> Mesh:
    """A mesh of the same axes and rules on fewer devices, every axis that splits still splitting.

    Raises:
      UserError: the devices do not divide into as many axes.
    """
    shape, left = [min(2, size) for size in mesh.shape], devices
    for size in shape:
        left //= size
    for axis in range(len(shape)):
        while mesh.shape[axis] > shape[axis] and left > 1:
            if left % 2:
                break
            shape[axis], left = shape[axis] * 2, left // 2
    made = dataclasses.replace(mesh, shape=tuple(shape), device_order=())
    if made.num_devices != devices:
        raise UserError(
            f"--equivalence on {devices} devices: a mesh of axes {list(mesh.axes)} reduces to "
            f"{list(made.shape)}; give --devices {made.num_devices}, or another power of 2 that is at "
            f"least {2 ** len(mesh.axes)}, so that every axis splits."
        )
    return made


def reduced_model(model: Any, mesh: Mesh) -> Any:
    """The model with the least sizes that every rule of the mesh can still split, in float32.

    In bfloat16 two sums in another order differ by as much as a wrong program might: a rounding flips
    a ReLU, or a token's choice of its expert. Whether a mesh computes the same does not depend on it.
    """

    def size(letter: str, least: int, now: int) -> int:
        shards = mesh.axis_size(mesh.partition(letter)[0])
        return max(min(now, least), 1) if shards == 1 else max(shards, least // shards * shards)

    block = model.block_layers
    changes: dict[str, Any] = {
        "activation_dtype": "float32",
        "encoder_layers": min(model.encoder_layers, 2 * block),
        "decoder_layers": min(model.decoder_layers, 2 * block),
        "model_dim": size("M", 64, model.model_dim),
        "hidden_dim": size("H", 128, model.hidden_dim),
        "heads": size("N", 4, model.heads),
        "head_dim": size("D", 16, model.head_dim),
    }
    if model.positions == "learned":
        changes["max_positions"] = LENGTH
    if model.experts:
        changes |= {
            "experts": size("E", 16, model.experts),
            "expert_hidden_dim": size("H", 128, model.expert_hidden_dim or model.hidden_dim),
            "num_groups": size("G", 8, model.num_groups) if model.num_groups else 0,
            "group_size": LENGTH if model.group_size else 0,
            # By the capacity factor: so many slots an expert were meant for other sizes.
            "capacity": 0,
            "eval_capacity": 0,
        }
    return dataclasses.replace(model, **changes)


def random_batch(names: Sequence[str], rows: int) -> dict[str, np.ndarray]:
    """Packed rows int32[B, 16]: two sentences and some padding a row, random words."""
    rng = np.random.default_rng(0)
    first = np.array([7 + row % 3 for row in range(rows)])[:, np.newaxis]
    place = np.arange(LENGTH)[np.newaxis]
    segments = np.where(place < first, 1, np.where(place < LENGTH - 2, 2, 0))
    positions = np.where(segments == 1, place, np.where(segments == 2, place - first, 0))
    made = {}
    for name in names:
        if name.endswith("segments"):
            made[name] = segments
        elif name.endswith("positions"):
            made[name] = positions
        else:
            made[name] = rng.integers(3, VOCABULARY, (rows, LENGTH)) * (segments > 0)
    return {name: array.astype(np.int32) for name, array in made.items()}


def compare(
    config: "Config", steps: "StepFunctions", batch: Mapping[str, np.ndarray], tolerance: float
) -> list[Comparison]:
    """Loss and gradients of the first training step on one device and on the config's mesh.

    Args:
      config: the reduced run.
      steps: the programs of its model.
      batch: int32[B, L] each.
      tolerance: allowed difference over the largest value.
    """
    mesh = config.mesh
    # The mesh first: it starts as many devices as both need.
    on_mesh = _gradients(Programs(config, steps, runtime.start(mesh)), batch)
    alone = dataclasses.replace(mesh, shape=(1,) * len(mesh.shape))
    on_one = _gradients(Programs(config, steps, runtime.start(alone)), batch)
    letters = Programs.parameters_of(specs_of(steps))
    found = []
    for name, expected in sorted(on_one.items()):
        if name != "loss" and letters[name].letters.startswith("R"):
            found += [
                _compared(f"{name} [{repeat}]", a, b, tolerance)
                for repeat, (a, b) in enumerate(zip(expected, on_mesh[name], strict=True))
            ]
        else:
            found.append(_compared(name, expected, on_mesh[name], tolerance))
    return found


def _gradients(programs: Programs, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Loss and the gradient of each weight, from weights drawn on the devices."""
    weights = Programs.parameters_of(programs.state_specs)

    def first_step(state, batch, control):
        parameters = Programs.parameters_of(state)
        gradients, metrics = programs.steps.gradients(parameters, batch, control, state["step"] + 1)
        return [gradients, {"loss": metrics["loss"]}]

    inputs = [programs.state_specs, programs.batch_specs, CONTROL]
    outputs = [{name: spec.letters for name, spec in weights.items()}, {}]
    gradients = programs.compile("gradients", first_step, inputs, outputs)
    placed = programs.devices.put(batch, programs.batch_specs)
    found, metrics = gradients(programs.initialize(), placed, programs.control(last_step=1))
    return {name: np.asarray(value) for name, value in {**found, **metrics}.items()}


def _compared(name: str, expected: np.ndarray, actual: np.ndarray, tolerance: float) -> Comparison:
    scale = float(np.max(np.abs(expected)))
    difference = float(np.max(np.abs(expected - actual)))
    return Comparison(name, difference / scale if scale else difference, tolerance)
