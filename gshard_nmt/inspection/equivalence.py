"""gshard-inspect --equivalence: checks that a config computes the same on one device and on a mesh.

The config keeps its structure: which layers, which routing, which mesh axes and rules. Its sizes are
reduced, so that both run on this machine's CPU in a minute. Loss and gradients of one step are
compared tensor by tensor. The weights of equal blocks are stacked in one array, and the part of each
block is compared on its own.

If two logits of a gate are almost equal, a sum in another order may swap their experts. Everything that
follows is then different, and this is no error of the program: another seed is tried.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.errors import UserError
from gshard_nmt.inspection import report
from gshard_nmt.model import transformer
from gshard_nmt.model.config import STACK_NAMES, Model
from gshard_nmt.model.counter_random import Key
from gshard_nmt.model.figures import row_of
from gshard_nmt.model.gating import Routing
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import Index, Total, Totals
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

ROUNDING = 4.0
"""Two logits are a tie if their gap is at most this many times the largest difference between the mesh
and one device. Another program with the same sums, such as the training step, may round a bit more."""

LENGTH = 16
VOCABULARY = 320
SEEDS = 4
"""How many seeds are tried, if rounding may have sent tokens to other experts."""


def show_equivalence(config: Config, name: str, devices: int = 0) -> None:
    """Runs a reduced config on one CPU device and on a mesh of several, and prints the comparison."""
    reduced = reduced_config(config, devices)
    mesh = reduced.mesh
    shape = " x ".join(f"{axis}={n}" for axis, n in zip(mesh.axes, mesh.shape, strict=True))
    mesh_text = f"{mesh.num_devices} ({shape})"
    batch = random_batch(list(batch_specs(reduced)), reduced.data.rows)
    first = reduced.train.seed
    for seed in range(first, first + SEEDS):
        reduced = reduced.replace(train={"seed": seed})
        with report.waiting(f"{name} at reduced size on 1 device and on {mesh_text}"):
            differences, ties = compare(reduced, step_functions(reduced), batch)
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
) -> tuple[dict[str, float], str]:
    """Compares loss and gradients of the first training step on one device and on the config's mesh.

    Args:
      batch: int32[B, L] each.

    Returns:
      The largest difference in each tensor, divided by its largest value on one device. The names are
      "loss" and those of the weights; the number of the block follows if it is a stack of blocks. If
      tensors differ and rounding may be the reason, also the number of tokens with a tie of experts, in
      words; else "".
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
    return differences, near_ties(programs[1], programs[0], batch) if _different(
        differences
    ) else ""


def relative_difference(expected: np.ndarray, actual: np.ndarray, scales: np.ndarray) -> float:
    """Returns the largest difference, divided by the largest of `scales` if it is not 0."""
    scale = float(np.max(np.abs(scales)))
    difference = float(np.max(np.abs(expected - actual)))
    return difference / scale if scale else difference


def _gradients(programs: CompiledSteps, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the loss and the gradient of each weight, for random weights made on the devices."""
    weights = weights_of(programs.state_specs)

    def first_step(state, batch, control):
        gradients, metrics = programs.functions.gradients(
            weights_of(state), batch, control, state["step"] + 1
        )
        return [gradients, {"loss": metrics["loss"]}]

    outputs = [{name: spec.letters for name, spec in weights.items()}, {}]
    gradients, metrics = _run(programs, "gradients", first_step, batch, outputs)
    return {name: np.asarray(value) for name, value in {**gradients, **metrics}.items()}


def _run(programs: CompiledSteps, name: str, function, batch, outputs: list) -> Sequence:
    """Runs a function of (state, batch, control) on a new state."""
    arguments = [programs.state_specs, programs.batch_specs, CONTROL]
    program = programs.compile(name, function, arguments, outputs)
    placed = programs.devices.put(batch, programs.batch_specs)
    return program(programs.initialize(), placed, programs.control())


def near_ties(
    on_one: CompiledSteps, on_mesh: CompiledSteps, batch: Mapping[str, np.ndarray]
) -> str:
    """Returns in words how many tokens have a tie of experts in the first training step.

    It looks at the first layer that has ties. "" means that rounding does not explain a difference: no
    layer has ties, or the logits before it differ by more than rounding. It is also "" if the model
    accumulates gradients or is a pipeline of microbatches, which show no logits.
    """
    functions = on_one.functions
    if not functions.model.experts or functions.microbatches > 1:
        return ""
    choices = functions.model.moe(training=True).gating.choices
    layers = zip(logits_of(on_one, batch), logits_of(on_mesh, batch), strict=True)
    for (is_token, logits), (_, mesh_logits) in layers:
        difference = np.max(np.abs(logits - mesh_logits))
        if not difference <= TOLERANCE * np.max(np.abs(logits)):
            return ""
        best = np.sort(logits[is_token], axis=-1)[:, -choices - 1 :]
        ties = (np.diff(best) <= ROUNDING * difference).any(axis=-1)
        if ties.any():
            return f"{ties.sum()} of {ties.size} tokens"
    return ""


@dataclasses.dataclass(frozen=True)
class _Recorder:
    """Records the logits of the gates as a total of a stack, float32[R, G, S, E]."""

    shape: tuple[int, int, int]  # G, S and E

    def declare(self, repeats: int) -> dict[str, Total]:
        return {"logits": Total((repeats, *self.shape))}

    def totals_of(self, routing: Routing, repeat: Index, repeats: int) -> Totals:
        return {"logits": row_of(routing.logits, repeat, repeats)}


def logits_of(
    programs: CompiledSteps, batch: Mapping[str, np.ndarray]
) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    """Returns bool[G, S], which tokens are not padding, and the logits [G, S, E] of each MoE layer."""
    model = programs.functions.model
    moe = model.moe(training=True)
    rows, length = batch["target_segments"].shape
    groups = moe.groups(rows, length)
    recorder = _Recorder((groups, rows * length // groups, moe.gating.experts))
    stacks = [stack for stack in STACK_NAMES if model.has_experts(stack)]

    def forward(state, batch, control):
        # The random numbers are those of step 1.
        mode = Mode(True, Key(control["seed"][0], control["seed"][1] ^ tf.constant(1, tf.uint32)))
        weights, memory, totals = weights_of(state), None, {}
        inputs = batch, mode, moe, recorder
        if model.encoder_layers:
            memory, totals["encoder"] = transformer.encode(model, weights, *inputs)
        _, totals["decoder"] = transformer.decode(model, weights, memory, *inputs)
        return [{stack: totals[stack]["logits"] for stack in stacks}]

    (results,) = _run(programs, "logits of gates", forward, batch, [{}])
    segments = {"encoder": "source_segments", "decoder": "target_segments"}
    return [
        (batch[segments[stack]].reshape(recorder.shape[:2]) > 0, layer)
        for stack in stacks
        for layer in np.asarray(results[stack])
    ]
