"""gshard-inspect --equivalence: checks that a config computes the same on one device and on a mesh.

The config keeps its structure: which layers, which routing, which mesh axes and rules. Its sizes are
reduced, so that both run on this machine's CPU in a minute. Loss and gradients of one step are
compared tensor by tensor. The weights of equal blocks are stacked in one array, and the part of each
block is compared on its own.

If two logits of a gate are almost equal, a sum in another order may swap their experts. Everything that
follows is then different, and this is no error of the program. A tiny change of the weights has the same
effect on one device. So we try it there, and then take another seed.
"""

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
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
from gshard_nmt.spmd.mesh import Mesh, nearest_mesh, of_shape, reduced_mesh

TOLERANCE = 5e-5
"""The largest allowed difference in a tensor, relative to its largest value.

A mesh adds a few hundred terms in another order than one device. On the demo the difference is 1e-6.
"""

ROUNDING = 1e-6
"""The relative change of the weights on one device that shows whether rounding changes an expert."""
TRIALS = 8

LENGTH = 16
VOCABULARY = 320
SEEDS = 4
"""How many seeds are tried, if rounding may have sent tokens to other experts."""


def show_equivalence(config: Config, name: str, devices: int = 0) -> None:
    """Runs a reduced config on one CPU device and on a mesh of several, and prints the comparison."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # an accelerator may have fewer devices, and other products
    reduced = reduced_config(config, devices)
    mesh_text = f"{reduced.mesh.num_devices} ({reduced.mesh.words})"
    batch = random_batch(list(batch_specs(reduced)), reduced.data.rows)
    first = reduced.train.seed
    for seed in range(first, first + SEEDS):
        reduced = reduced.replace(train={"seed": seed})
        with report.waiting(f"{name} at reduced size on 1 device and on {mesh_text}"):
            differences, may_be_rounding = compare(reduced, step_functions(reduced), batch)
        if not may_be_rounding:
            break
        sys.stdout.write(
            f"With Train.seed = {seed} tensors differ. A change of the weights by rounding also changes "
            "them on one device: it sends a token to another expert.\n"
        )
    else:
        raise UserError(
            f"--equivalence tried {SEEDS} seeds. With each of them tensors differ, and rounding may have "
            "sent a token to another expert. Give another --gin 'Train.seed = N', or fewer --devices."
        )
    different = _different(differences)
    table = [("tensor", "difference", "")]
    for tensor, difference in differences.items():
        verdict = "DIFFERENT" if tensor in different else "equal"
        table.append((tensor, f"{difference:.1e}", verdict))
    sys.stdout.write(report.table(table) + "\n")
    if different:
        raise UserError(
            f"{len(different)} of {len(differences)} tensors differ by more than {TOLERANCE:g} of "
            f"their largest value between 1 device and {mesh_text}; the first is {different[0]}. "
            "This is a bug of gshard-nmt; please report it with this config."
        )
    dtype = config.model.activation_dtype
    note = "" if dtype == "float32" else f", activations in float32 instead of {dtype}"
    sys.stdout.write(
        f"loss and {len(differences) - 1} gradients on 1 device and on {mesh_text} are equal within "
        f"{TOLERANCE:g} of each tensor's largest value{note}\n"
    )


def _different(differences: Mapping[str, float]) -> list[str]:
    # A difference of NaN is more than the tolerance too.
    return [name for name, difference in differences.items() if not difference <= TOLERANCE]


def reduced_config(config: Config, devices: int = 0) -> Config:
    """Returns the config with small sizes, on a mesh of few devices that splits the same tensors.

    Without a number of devices it takes the largest power of 2 up to the config's, at most 8; if that is
    one device, it takes 8.
    Raises UserError if no mesh of so many devices splits everything that the config's mesh splits.
    """
    current = config.mesh.num_devices
    devices = devices or (8 if current == 1 else _power_of_2(min(8, current)))
    mesh = config.mesh
    if current < devices:
        mesh = nearest_mesh(of_shape(mesh, [*map(_power_of_2, mesh.shape)]), devices)
    mesh = reduced_mesh(mesh, devices)
    microbatches = min(config.train.microbatches, 2)
    model = reduced_model(config.model, mesh)
    reduced = config.replace(
        mesh=mesh,
        model=dataclasses.replace(model, num_groups=model.num_groups * microbatches),
        train={"microbatches": microbatches},
        data={
            "rows": microbatches
            * 2
            * math.lcm(*(mesh.axis_size(mesh.partition(a)[0]) for a in "BG")),
            **dict.fromkeys(("source_length", "target_length"), LENGTH),
            **dict.fromkeys(("source_vocabulary", "target_vocabulary"), VOCABULARY),
        },
    )
    check_divides(reduced, training_arrays(reduced, step_functions(reduced)))
    return reduced


def _power_of_2(most: int) -> int:
    return 1 << (most.bit_length() - 1)


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
        unit = stages * model.block_layers(stack)
        return min(model.depth(stack) // unit, 2) * unit

    changes: dict[str, Any] = {
        "activation_dtype": "float32",
        "matmul_precision": "default",
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
            "num_groups": size("G", 8, _power_of_2(model.num_groups)) if model.num_groups else 0,
            "group_size": LENGTH if model.group_size else 0,
            # 0 means that the capacity factor gives the capacity. A configured capacity was chosen for
            # the full size.
            "capacity": 0,
        }
    return dataclasses.replace(model, **changes)


def random_batch(names: Sequence[str], rows: int) -> dict[str, np.ndarray]:
    """Returns packed rows int32[B, 16] of random words: two sentences a row, then padding."""
    rng = np.random.default_rng(0)
    first = np.array([7 + row % 3 for row in range(rows)])[:, np.newaxis]
    place = np.arange(LENGTH)[np.newaxis]
    segments = np.where(place < first, 1, np.where(place < LENGTH - 2, 2, 0))
    positions = np.where(segments == 1, place, np.where(segments == 2, place - first, 0))
    known = {"segments": segments, "languages": np.minimum(segments, 1), "positions": positions}
    batch = {}
    for name in names:
        array = known.get(name.rpartition("_")[2])
        if array is None:
            array = rng.integers(3, VOCABULARY, (rows, LENGTH)) * (segments > 0)
        batch[name] = array.astype(np.int32)
    return batch


Gradients = dict[str, np.ndarray]
"""The loss, and the gradient of each weight."""


def compare(
    config: Config, functions: StepFunctions, batch: Mapping[str, np.ndarray]
) -> tuple[dict[str, float], bool]:
    """Compares loss and gradients of the first training step on one device and on the config's mesh.

    Returns the largest difference in each tensor, divided by its largest value on one device. The names
    are "loss" and those of the weights; the number of the block follows if it is a stack of blocks. Also
    whether tensors differ, and rounding may be the reason.
    """
    mesh = config.mesh
    one_device_mesh = of_shape(mesh, (1,) * len(mesh.shape))
    # The mesh comes first: it starts the devices that both need.
    steps = [
        first_step(CompiledSteps(config, functions, runtime.start(m)), batch)
        for m in (mesh, one_device_mesh)
    ]
    on_mesh, on_one = (step(0) for step in steps)
    weights = weight_specs(functions)
    stacks = {name for name, spec in weights.items() if spec.letters.startswith("R")}
    differences = relative_differences(on_one, on_mesh, stacks)
    may_be_rounding = bool(_different(differences) and functions.model.experts) and any(
        _different(relative_differences(on_one, steps[1](trial), stacks))
        for trial in range(1, TRIALS + 1)
    )
    return differences, may_be_rounding


def first_step(
    programs: CompiledSteps, batch: Mapping[str, np.ndarray]
) -> Callable[[int], Gradients]:
    """Compiles a function that computes the gradients for random weights made on the devices.

    The function takes the number of a trial. Trial 0 has the weights of the first step, the others
    weights with a relative change of `ROUNDING`.
    """
    weights = weights_of(programs.state_specs)

    def gradients_of_state(state, batch, control):
        gradients, metrics = programs.functions.gradients(
            weights_of(state), batch, control, state["step"] + 1
        )
        return [gradients, {"loss": metrics["loss"]}]

    arguments = [programs.state_specs, programs.batch_specs, CONTROL]
    outputs = [{name: spec.letters for name, spec in weights.items()}, {}]
    program = programs.compile("gradients", gradients_of_state, arguments, outputs)
    placed = programs.devices.put(batch, programs.batch_specs)

    def run(trial: int) -> Gradients:
        state, numbers = programs.initialize(), np.random.default_rng(trial)
        if trial:
            changed = {
                name: np.asarray(x) * np.float32(1 + ROUNDING * numbers.uniform(-1, 1, x.shape))
                for name, x in state.items()
                if name.startswith("parameters/")
            }
            state |= programs.devices.put(changed, programs.state_specs)
        gradients, metrics = program(state, placed, programs.control())
        return {name: np.asarray(value) for name, value in {**gradients, **metrics}.items()}

    return run


def relative_differences(
    expected: Gradients, actual: Gradients, stacks: Collection[str]
) -> dict[str, float]:
    """Returns the largest difference in each tensor, and in each block of those in `stacks`."""
    differences = {}
    for name, values in sorted(expected.items()):
        # A bias of the keys adds one number to all logits of a query, so its gradient is 0 but for
        # rounding. We compare this rounding with the gradient of the queries' bias.
        scales = expected.get(name.replace("/key_bias", "/query_bias"), values)
        if name in stacks:
            blocks = zip(values, actual[name], scales, strict=True)
            for repeat, block in enumerate(blocks):
                differences[f"{name} [{repeat}]"] = relative_difference(*block)
        else:
            differences[name] = relative_difference(values, actual[name], scales)
    return differences


def relative_difference(expected: np.ndarray, actual: np.ndarray, scales: np.ndarray) -> float:
    """Returns the largest difference, divided by the largest of `scales` if it is not 0."""
    scale = float(np.max(np.abs(scales)))
    difference = float(np.max(np.abs(expected - actual)))
    return difference / scale if scale else difference
