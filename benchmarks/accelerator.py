"""Times a training step on an accelerator whose host has jax and NumPy, but no TensorFlow.

    .venv/bin/python benchmarks/accelerator.py lower STEP [--setting "Model.experts = 64" ...]
    python benchmarks/accelerator.py run STEP [--peak_tflops 989]

`lower` needs TensorFlow and no accelerator. It writes the lowered step of a model, and the function that
makes its first state, into the folder STEP. Copy the folder and the source of gshard-nmt to the other
host. `run` compiles both there and prints the time of a step. It runs on CPUs too.

The model is that of benchmarks/training.py with 8 experts. Any setting of a config can be changed.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import program_cache, runtime
from gshard_nmt.spmd.lowering import ArraySpecs
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import Program

BASE = Path(__file__).with_name("trainers") / "base.gin"
MODEL = (
    "Model.encoder_layers = 4",
    "Model.decoder_layers = 4",
    "Model.moe_every = 2",
    "Model.model_dim = 256",
    "Model.hidden_dim = 1024",
    "Model.heads = 8",
    "Model.head_dim = 32",
    "Model.experts = 8",
    "Data.source_vocabulary = 8000",
    "Data.target_vocabulary = 8000",
    "Data.rows = 32",
    "Data.source_length = 64",
    "Data.target_length = 64",
)
CONTROL = {
    "seed": np.array([1, 0], np.uint32),
    "max_steps": np.array(1_000_000, np.int32),
    "max_tokens": np.zeros(2, np.uint32),
    "one": np.array(1.0, np.float32),
}
WARM_UP = 3
IDS = ("source_ids", "target_inputs")
FIRST_ID = 4
"""Ids below are reserved: padding, the ends of a sentence, and unknown pieces."""


def main() -> int:
    """Lowers or runs a step; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True)
    lowering = actions.add_parser("lower", help="write the lowered step; needs TensorFlow")
    lowering.add_argument("folder", type=Path)
    lowering.add_argument(
        "--setting", action="append", default=[], help="a gin binding; may be given several times"
    )
    running = actions.add_parser("run", help="time the step; needs jax and NumPy")
    running.add_argument("folder", type=Path)
    running.add_argument("--steps", type=int, default=20, help="timed steps; default 20")
    running.add_argument(
        "--peak_tflops", type=float, help="peak of the devices together, for the share of the peak"
    )
    arguments = parser.parse_args()
    try:
        if arguments.action == "lower":
            lower(arguments.folder, arguments.setting)
        else:
            run(arguments.folder, arguments.steps, arguments.peak_tflops)
    except (UserError, OSError) as error:
        print(f"accelerator.py: {error}", file=sys.stderr)
        return 2
    return 0


def lower(folder: Path, settings: list[str]) -> None:
    """Lowers the step and the first state of a model, and writes them into a folder."""
    from gshard_nmt.run.arrays import CONTROL as CONTROL_SPECS
    from gshard_nmt.run.arrays import state_specs, step_functions
    from gshard_nmt.run.compiled_steps import lower_train_step
    from gshard_nmt.settings.gin_reader import load_config
    from gshard_nmt.spmd import lowering

    config = load_config(str(BASE), [*MODEL, *settings])
    functions = step_functions(config)
    folder.mkdir(parents=True, exist_ok=True)
    letters = {name: spec.letters for name, spec in state_specs(functions).items()}
    lowered = {
        "train": lower_train_step(config, functions, config.mesh),
        "initialize": lowering.lower(functions.initialize, [CONTROL_SPECS], [letters], config.mesh),
    }
    devices = runtime.start(config.mesh)
    for name, function in lowered.items():
        program_cache.store(folder / name, devices.export(function), function.signature)
    facts = {
        "mesh": dataclasses.asdict(config.mesh),
        "vocabulary": min(functions.source_vocabulary, functions.target_vocabulary),
        "settings": settings,
    }
    (folder / "step.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{folder}: the lowered step of {', '.join(settings) or 'the model with 8 experts'}")


def run(folder: Path, steps: int, peak_tflops: float | None) -> None:
    """Compiles the step of a folder, makes some steps, and prints what they took.

    Raises:
      UserError: a number is too small, the folder has no sound step, there are too few devices, or the
        loss is not finite.
    """
    if steps < 1:
        raise UserError(f"--steps is {steps}; the smallest number is 1.")
    if peak_tflops is not None and not peak_tflops > 0:
        raise UserError(f"--peak_tflops is {peak_tflops:g}; give a number above 0.")
    facts = read_facts(folder)
    mesh = Mesh(**facts["mesh"])
    devices = runtime.start(mesh)
    initialize, _ = compiled(folder / "initialize", devices)
    train_step, flops = compiled(folder / "train", devices, donate=(0,))
    _, batch_specs, control_specs = train_step.signature.inputs
    batch = devices.put(batch_of(batch_specs, facts["vocabulary"]), batch_specs)
    control = devices.put(CONTROL, control_specs)
    (state,) = initialize(control)
    seconds, losses = [], []
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        state, metrics = train_step(state, batch, control)
        losses.append(float(metrics["loss"]))  # it waits for the step
        seconds.append(time.perf_counter() - began)
    if not np.isfinite(losses).all():
        raise UserError(f"{folder}: the loss is not finite: {losses}")
    timed = sorted(seconds[WARM_UP:])
    median = statistics.median(timed)
    places = sum(batch_specs[name].shape[0] * batch_specs[name].shape[1] for name in IDS)
    device = devices.devices.devices.flat[0]
    print(
        f"{mesh.num_devices} x {device.device_kind} ({device.platform}): {1e3 * median:.2f} ms a step "
        f"({1e3 * timed[0]:.2f} to {1e3 * timed[-1]:.2f} in {steps} steps), "
        f"{places / median:,.0f} places/s, loss {losses[0]:.3f} to {losses[-1]:.3f}"
    )
    rate = flops / median / 1e12
    share = "" if peak_tflops is None else f", {rate / peak_tflops:.1%} of the peak"
    print(
        f"{flops / 1e9:.4g} GFLOP a step, as XLA counts them before it optimizes: "
        f"{rate:.4g} TFLOP/s{share}"
    )


def read_facts(folder: Path) -> dict[str, Any]:
    """Returns what `lower` wrote about a step."""
    try:
        facts = json.loads((folder / "step.json").read_text())
        mesh = facts["mesh"]
        lists = {name: tuple(v) for name, v in mesh.items() if isinstance(v, list)}
        return facts | {"mesh": mesh | lists}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder} has no step ({error}). Write it with: accelerator.py lower {folder}"
        ) from None


def compiled(
    artifact: Path, devices: runtime.Runtime, donate: tuple[int, ...] = ()
) -> tuple[Program, float]:
    """Returns the compiled program of an artifact, and the FLOPs that XLA counts in it."""
    stored = program_cache.load(artifact)
    if stored is None:
        raise UserError(
            f"{artifact}.jaxexport is missing or damaged, or another TensorFlow lowered it. Write it "
            f"again with: accelerator.py lower {artifact.parent}"
        )
    exported, signature = stored
    began = time.perf_counter()
    jitted, arguments = devices.jit(exported.call, signature, donate)
    lowered = jitted.lower(*arguments)
    executable = lowered.compile(compiler_options=devices.compiler_options(False))
    took = time.perf_counter() - began
    print(f"{artifact.name}: compiled in {took:.1f} s", file=sys.stderr)
    flops = (lowered.cost_analysis() or {}).get("flops", float("nan"))
    return Program(signature, executable, 0.0, took), flops


def batch_of(specs: ArraySpecs, vocabulary: int) -> dict[str, np.ndarray]:
    """Returns random sentences that fill their rows, all of one language."""
    rng = np.random.default_rng(0)

    def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name.endswith("positions"):
            return np.broadcast_to(np.arange(shape[1]), shape)
        if name.endswith(("segments", "languages")):
            return np.ones(shape)
        return rng.integers(FIRST_ID, vocabulary, shape)

    return {name: values(name, spec.shape).astype(np.int32) for name, spec in specs.items()}


if __name__ == "__main__":
    sys.exit(main())
