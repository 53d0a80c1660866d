"""gshard-inspect --equivalence: checks that a config computes the same on one device and on a mesh.

The config keeps its structure: which layers, which routing, which mesh axes and rules. Its sizes are
reduced, so that both run on this machine's CPU in a minute. Loss and gradients of one step are
compared tensor by tensor. The weights of equal blocks are stacked in one array, and the part of each
block is compared on its own.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.checks.router_ties import near_ties
from gshard_nmt.errors import UserError
from gshard_nmt.inspection import terminal
from gshard_nmt.model.config import Model
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import (
    CONTROL,
    batch_specs,
    step_functions,
    training_arrays,
    weight_specs,
    weights_of,
)
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_divides
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.resize import nearest_mesh, reduced_mesh

TOLERANCE = 5e-5
"""The largest allowed difference in a tensor, relative to its largest value.

A mesh adds a few hundred terms in another order than one device. On the demo the difference is 1e-6.
"""

LENGTH = 16
VOCABULARY = 320
SEEDS = 4
"""How many seeds are tried, if rounding may have sent tokens to other experts."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One tensor, computed on one device and on the mesh."""

    # "loss", or the weight whose gradient is compared. If it is a stack of blocks, the number of
    # the block follows.
    name: str
    difference: float  # the largest difference, divided by the largest value on one device
    tolerance: float  # the allowed difference

    @property
    def is_equal(self) -> bool:
        """Whether the difference is within the tolerance. A difference of NaN is not."""
        return self.difference <= self.tolerance


def show_equivalence(config: Config, name: str, devices: int = 0) -> None:
    """Runs a reduced config on one CPU device and on a mesh of several, and prints the comparison.

    With many experts, rounding may send a token to another expert, and all tensors after it then differ.
    If tensors differ and the gates have such ties, the next seed is tried.

    Args:
      devices: the number of devices of the mesh; 0 takes the config's, at most 8.

    Raises:
      UserError: loss or a gradient differs by more than the tolerance.
    """
    reduced = reduced_config(config, devices)
    mesh = reduced.mesh
    shape = " x ".join(f"{axis}={n}" for axis, n in zip(mesh.axes, mesh.shape, strict=True))
    mesh_text = f"{mesh.num_devices} ({shape})"
    batch = random_batch(list(batch_specs(reduced)), reduced.data.rows)
    first = reduced.train.seed
    for seed in range(first, first + SEEDS):
        reduced = reduced.replace(train={"seed": seed})
        with terminal.waiting(f"{name} at reduced size on 1 device and on {mesh_text}"):
            comparisons, ties = compare(reduced, step_functions(reduced), batch, TOLERANCE)
        if not ties:
            break
        sys.stdout.write(
            f"With Train.seed = {seed} tensors differ. But for {ties} of a layer, the logits of two "
            "experts differ by rounding alone, and another expert changes all that follows.\n"
        )
    else:
        raise UserError(
            f"--equivalence tried {SEEDS} seeds. With each of them tensors differ, and rounding may have "
            "sent a token to another expert. Give another --gin 'Train.seed = N', or fewer --devices."
        )
    table = [("tensor", "difference", "")]
    for comparison in comparisons:
        verdict = "equal" if comparison.is_equal else "DIFFERENT"
        table.append((comparison.name, f"{comparison.difference:.1e}", verdict))
    sys.stdout.write(terminal.table(table) + "\n")
    different = [comparison for comparison in comparisons if not comparison.is_equal]
    if different:
        raise UserError(
            f"{len(different)} of {len(comparisons)} tensors differ by more than {TOLERANCE:g} of "
            f"their largest value between 1 device and {mesh_text}; the first is {different[0].name}. "
            "This is a bug of gshard-nmt; please report it with this config."
        )
    dtype = config.model.activation_dtype
    note = "" if dtype == "float32" else f", activations in float32 instead of {dtype}"
    sys.stdout.write(
        f"loss and {len(comparisons) - 1} gradients on 1 device and on {mesh_text} are equal within "
        f"{TOLERANCE:g} of each tensor's largest value{note}\n"
    )


def reduced_config(config: Config, devices: int = 0) -> Config:
    """Returns the config with small sizes, on a mesh of few devices that splits the same tensors.

    Args:
      devices: the number of devices of the mesh; 0 takes the config's, at most 8. If the
        config has one device, 0 means 8.

    Raises:
      UserError: no mesh of this number of devices splits everything that the config's mesh splits.
    """
    current = config.mesh.num_devices
    devices = devices or (8 if current == 1 else min(8, current))
    mesh = config.mesh if current >= devices else nearest_mesh(config.mesh, devices)
    mesh = reduced_mesh(mesh, devices)
    microbatches = min(config.train.microbatches, 2)
    model = reduced_model(config.model, mesh)
    reduced = config.replace(
        mesh=mesh,
        model=dataclasses.replace(model, num_groups=model.num_groups * microbatches),
        train={"microbatches": microbatches},
        data={
            "rows": microbatches * 2 * mesh.axis_size(mesh.partition("B")[0]),
            "source_length": LENGTH,
            "target_length": LENGTH,
            "source_vocabulary": VOCABULARY,
            "target_vocabulary": VOCABULARY,
        },
    )
    check_divides(reduced, training_arrays(reduced, step_functions(reduced)))
    return reduced


def reduced_model(model: Model, mesh: Mesh) -> Model:
    """Returns the model in float32, with small sizes that every rule of the mesh can still split.

    In bfloat16, a sum in another order may flip a ReLU or send a token to another expert. The results
    then differ as much as if the program were wrong. How the mesh splits tensors does not depend on the
    dtype.
    """

    def size(letter: str, wanted: int, current: int) -> int:
        shards = mesh.axis_size(mesh.partition(letter)[0])
        if shards == 1:
            return max(min(current, wanted), 1)
        return max(shards, wanted // shards * shards)

    # A stage of a pipeline has two blocks, if it has more than one.
    stages = size("P", 2, model.stages) if model.stack == "pipeline" else 1

    def layers(stack: str) -> int:
        return min(model.depth(stack), 2 * stages * model.block_layers(stack))

    changes: dict[str, Any] = {
        "activation_dtype": "float32",
        "stages": stages,
        "encoder_layers": layers("encoder"),
        "decoder_layers": layers("decoder"),
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
            "shared_expert_dim": (
                size("H", 128, model.shared_expert_dim) if model.shared_expert_dim else 0
            ),
            "num_groups": size("G", 8, model.num_groups) if model.num_groups else 0,
            "group_size": LENGTH if model.group_size else 0,
            # 0 means that the capacity factor gives the capacity. A configured capacity was chosen for
            # the full size.
            "capacity": 0,
            "eval_capacity": 0,
        }
    return dataclasses.replace(model, **changes)


def random_batch(names: Sequence[str], rows: int) -> dict[str, np.ndarray]:
    """Returns packed rows int32[B, 16] of random words: two sentences a row, then padding."""
    rng = np.random.default_rng(0)
    first = np.array([7 + row % 3 for row in range(rows)])[:, np.newaxis]
    place = np.arange(LENGTH)[np.newaxis]
    segments = np.where(place < first, 1, np.where(place < LENGTH - 2, 2, 0))
    positions = np.where(segments == 1, place, np.where(segments == 2, place - first, 0))
    batch = {}
    for name in names:
        if name.endswith("segments"):
            batch[name] = segments
        elif name.endswith("languages"):
            batch[name] = np.minimum(segments, 1)
        elif name.endswith("positions"):
            batch[name] = positions
        else:
            batch[name] = rng.integers(3, VOCABULARY, (rows, LENGTH)) * (segments > 0)
    return {name: array.astype(np.int32) for name, array in batch.items()}


def compare(
    config: Config, functions: StepFunctions, batch: Mapping[str, np.ndarray], tolerance: float
) -> tuple[list[Comparison], str]:
    """Compares loss and gradients of the first training step on one device and on the config's mesh.

    Args:
      batch: int32[B, L] each.
      tolerance: the allowed difference, relative to the largest value of a tensor.

    Returns:
      The comparisons. If tensors differ and rounding may be the reason, also the number of tokens with
      a tie of experts, in words; else "".
    """
    mesh = config.mesh
    one_device_mesh = dataclasses.replace(mesh, shape=(1,) * len(mesh.shape))
    # The mesh comes first: it starts the devices that both need.
    programs = [CompiledSteps(config, functions, runtime.start(m)) for m in (mesh, one_device_mesh)]
    on_mesh, on_one = (_gradients(program, batch) for program in programs)
    weights = weight_specs(functions)
    comparisons = []
    for name, expected in sorted(on_one.items()):
        # A bias of the keys adds one number to all logits of a query, so its gradient is 0 but for
        # rounding. We compare this rounding with the gradient of the queries' bias.
        scales = on_one.get(name.replace("/key_bias", "/query_bias"), expected)
        if name != "loss" and weights[name].letters.startswith("R"):
            comparisons += [
                _compared(f"{name} [{repeat}]", *values, tolerance)
                for repeat, values in enumerate(zip(expected, on_mesh[name], scales, strict=True))
            ]
        else:
            comparisons.append(_compared(name, expected, on_mesh[name], scales, tolerance))
    ties = ""
    if not all(comparison.is_equal for comparison in comparisons):
        ties = near_ties(programs[1], programs[0], batch, tolerance)
    return comparisons, ties


def _gradients(programs: CompiledSteps, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the loss and the gradient of each weight, for random weights made on the devices."""
    weights = weights_of(programs.state_specs)

    def first_step(state, batch, control):
        gradients, metrics = programs.functions.gradients(
            weights_of(state), batch, control, state["step"] + 1
        )
        return [gradients, {"loss": metrics["loss"]}]

    inputs = [programs.state_specs, programs.batch_specs, CONTROL]
    outputs = [{name: spec.letters for name, spec in weights.items()}, {}]
    program = programs.compile("gradients", first_step, inputs, outputs)
    placed = programs.devices.put(batch, programs.batch_specs)
    gradients, metrics = program(programs.initialize(), placed, programs.control())
    return {name: np.asarray(value) for name, value in {**gradients, **metrics}.items()}


def _compared(
    name: str, expected: np.ndarray, actual: np.ndarray, scales: np.ndarray, tolerance: float
) -> Comparison:
    scale = float(np.max(np.abs(scales)))
    difference = float(np.max(np.abs(expected - actual)))
    return Comparison(name, difference / scale if scale else difference, tolerance)
