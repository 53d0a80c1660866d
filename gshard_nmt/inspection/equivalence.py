"""gshard-inspect --equivalence: checks that a config computes the same on one device and on a mesh.

The config keeps its structure: which layers, which routing, which mesh axes and rules. Its sizes are
reduced, so that both run on this machine's CPU in a minute. Loss and gradients of one step are
compared tensor by tensor. The weights of equal blocks are stacked in one array, and the part of each
block is compared on its own.

If two logits of a gate are almost equal, a sum in another order may swap their experts. Everything that
follows is then different, and this is no error of the program. So a model with experts is wrong only if
it differs with each of several seeds.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.inspection import report
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
from gshard_nmt.spmd.mesh import Mesh, nearest_mesh, reduced_mesh

TOLERANCE = 5e-5
"""The largest allowed difference in a tensor, relative to its largest value.

A mesh adds a few hundred terms in another order than one device. On the demo the difference is 1e-6.
"""

LENGTH = 16
VOCABULARY = 320
SEEDS = 3
"""How many seeds of a model with experts are tried."""


def show_equivalence(config: Config, name: str, devices: int = 0) -> None:
    """Runs a reduced config on one CPU device and on a mesh of several, and prints the comparison."""
    reduced = reduced_config(config, devices)
    mesh = reduced.mesh
    shape = " x ".join(f"{axis}={n}" for axis, n in zip(mesh.axes, mesh.shape, strict=True))
    mesh_text = f"{mesh.num_devices} ({shape})"
    batch = random_batch(list(batch_specs(reduced)), reduced.data.rows)
    first = reduced.train.seed
    seeds = range(first, first + (SEEDS if reduced.model.experts else 1))
    for seed in seeds:
        reduced = reduced.replace(train={"seed": seed})
        with report.waiting(f"{name} at reduced size on 1 device and on {mesh_text}"):
            differences = compare(reduced, step_functions(reduced), batch)
        # A difference of NaN is more than the tolerance too.
        different = [tensor for tensor, size in differences.items() if not size <= TOLERANCE]
        if not different:
            break
        if seed != seeds[-1]:
            sys.stdout.write(
                f"With Train.seed = {seed}, {len(different)} of {len(differences)} tensors differ. "
                "Rounding may have sent a token to another expert, so another seed is tried.\n"
            )
    table = [("tensor", "difference", "")]
    for tensor, difference in differences.items():
        verdict = "DIFFERENT" if tensor in different else "equal"
        table.append((tensor, f"{difference:.1e}", verdict))
    sys.stdout.write(report.table(table) + "\n")
    if different:
        with_seeds = f" with each of {SEEDS} seeds" if len(seeds) > 1 else ""
        raise UserError(
            f"{len(different)} of {len(differences)} tensors differ by more than {TOLERANCE:g} of "
            f"their largest value between 1 device and {mesh_text}{with_seeds}; the first is "
            f"{different[0]}. This is a bug of gshard-nmt; please report it with this config."
        )
    dtype = config.model.activation_dtype
    note = "" if dtype == "float32" else f", activations in float32 instead of {dtype}"
    sys.stdout.write(
        f"loss and {len(differences) - 1} gradients on 1 device and on {mesh_text} are equal within "
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
    config: Config, functions: StepFunctions, batch: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Compares loss and gradients of the first training step on one device and on the config's mesh.

    Args:
      batch: int32[B, L] each.

    Returns:
      The largest difference in each tensor, divided by its largest value on one device. The names are
      "loss" and those of the weights; the number of the block follows if it is a stack of blocks.
    """
    mesh = config.mesh
    one_device_mesh = dataclasses.replace(mesh, shape=(1,) * len(mesh.shape))
    # The mesh comes first: it starts the devices that both need.
    programs = [CompiledSteps(config, functions, runtime.start(m)) for m in (mesh, one_device_mesh)]
    on_mesh, on_one = (_gradients(program, batch) for program in programs)
    weights = weight_specs(functions)
    differences = {}
    for name, expected in sorted(on_one.items()):
        # A bias of the keys adds one number to all logits of a query, so its gradient is 0 but for
        # rounding. We compare this rounding with the gradient of the queries' bias.
        scales = on_one.get(name.replace("/key_bias", "/query_bias"), expected)
        if name != "loss" and weights[name].letters.startswith("R"):
            blocks = zip(expected, on_mesh[name], scales, strict=True)
            for repeat, values in enumerate(blocks):
                differences[f"{name} [{repeat}]"] = relative_difference(*values)
        else:
            differences[name] = relative_difference(expected, on_mesh[name], scales)
    return differences


def relative_difference(expected: np.ndarray, actual: np.ndarray, scales: np.ndarray) -> float:
    """Returns the largest difference, divided by the largest of `scales` if it is not 0."""
    scale = float(np.max(np.abs(scales)))
    difference = float(np.max(np.abs(expected - actual)))
    return difference / scale if scale else difference


def _gradients(programs: CompiledSteps, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the loss and the gradient of each weight, for random weights made on the devices."""

    def first_step(state, batch, control):
        gradients, metrics = programs.functions.gradients(
            weights_of(state), batch, control, state["step"] + 1
        )
        return [{**gradients, "loss": metrics["loss"]}]

    inputs = [programs.state_specs, programs.batch_specs, CONTROL]
    letters = {name: spec.letters for name, spec in weights_of(programs.state_specs).items()}
    program = programs.compile("gradients", first_step, inputs, [letters])
    placed = programs.devices.put(batch, programs.batch_specs)
    (results,) = program(programs.initialize(), placed, programs.control())
    return {name: np.asarray(value) for name, value in results.items()}
