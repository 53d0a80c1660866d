"""Times a training step on an accelerator whose host has jax and NumPy, but no TensorFlow.

    .venv/bin/python benchmarks/accelerator.py lower STEP [--workload JSON] [--setting BINDING ...]
    python benchmarks/accelerator.py run STEP [--peak_tflops 989]
    python benchmarks/accelerator.py peer [--workload JSON] [--peak_tflops 989]

`lower` needs TensorFlow and no accelerator. It writes the lowered step of a model, and the function that
makes its first state, into the folder STEP. Copy the folder and the source of gshard-nmt to the other
host. `run` compiles both there and prints the time of a step. It runs on CPUs too. `peer` does the same
work with Hugging Face transformers on a GPU: M2M100, or NllbMoe if there are experts.

The model and the batch are those of benchmarks/training.py with 8 experts, and products in bfloat16.
--workload changes them, such as '{"experts": 0, "rows": 512, "model_dim": 1024, "hidden_dim": 4096}';
trainers/workload.py has the fields. --setting changes a setting of a config, as --gin does.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from trainers.workload import Workload

sys.path.insert(0, str(Path(__file__).parents[1]))

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import program_cache, runtime
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import Program

WARM_UP = 3
IDS = ("source_ids", "target_inputs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True)
    lowering = actions.add_parser("lower", help="write the lowered step; needs TensorFlow")
    lowering.add_argument("folder", type=Path)
    workload_flag(lowering)
    lowering.add_argument(
        "--setting", action="append", default=[], help="a gin binding; may be given several times"
    )
    running = actions.add_parser("run", help="time the step; needs jax and NumPy")
    running.add_argument("folder", type=Path)
    timing_flags(running)
    peer = actions.add_parser("peer", help="time Hugging Face's step; needs PyTorch")
    workload_flag(peer)
    timing_flags(peer)
    arguments = parser.parse_args()
    try:
        if arguments.action == "lower":
            lower(arguments.folder, arguments.setting, workload_of(arguments.workload))
        else:
            check(arguments.steps, arguments.peak_tflops)
            if arguments.action == "run":
                run(arguments.folder, arguments.steps, arguments.peak_tflops)
            else:
                workload = workload_of(arguments.workload)
                time_peer(workload, arguments.steps, arguments.peak_tflops)
    except (UserError, OSError) as error:
        print(f"accelerator.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("accelerator.py: interrupted", file=sys.stderr)
        return 130
    return 0


def workload_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", default="{}", help="fields of the workload, as JSON")


def timing_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=20, help="timed steps; default 20")
    parser.add_argument(
        "--peak_tflops", type=float, help="peak of the devices together, for the share of the peak"
    )


def check(steps: int, peak_tflops: float | None) -> None:
    if steps < 1:
        raise UserError(f"--steps is {steps}; the smallest number is 1.")
    if peak_tflops is not None and not peak_tflops > 0:
        raise UserError(f"--peak_tflops is {peak_tflops:g}; give a number above 0.")


def workload_of(fields: str) -> Workload:
    ours = {"experts": 8, "precision": "bfloat16"}
    try:
        return Workload(**ours | json.loads(fields) | {"cores": (0,), "steps": 1, "settings": ()})
    except (ValueError, TypeError) as error:
        raise UserError(
            f"--workload is {fields!r} ({error}); give JSON such as "
            '\'{"experts": 0, "rows": 512}\' with fields of benchmarks/trainers/workload.py.'
        ) from None


def lower(folder: Path, settings: list[str], workload: Workload) -> None:
    from step import batch_of
    from trainers import ours

    from gshard_nmt.run.arrays import CONTROL, step_functions
    from gshard_nmt.run.compiled_steps import CompiledSteps, lower_train_step
    from gshard_nmt.spmd import lowering

    config = ours.config_of(dataclasses.replace(workload, settings=tuple(settings)))
    functions = step_functions(config)
    folder.mkdir(parents=True, exist_ok=True)
    devices = runtime.start(config.mesh)
    steps = CompiledSteps(config, functions, devices)
    letters = {name: spec.letters for name, spec in steps.state_specs.items()}
    lowered = {
        "train": lower_train_step(config, functions, config.mesh),
        "initialize": lowering.lower(functions.initialize, [CONTROL], [letters], config.mesh),
    }
    for name, function in lowered.items():
        exported = devices.export(function)
        program_cache.store(folder / name, exported, function.signature)
        if name == "train":
            jitted, places = devices.jit(exported.call, function.signature)
            flops = (jitted.lower(*places).cost_analysis() or {}).get("flops", float("nan"))
    np.savez(folder / "batch.npz", **batch_of(config))
    np.savez(folder / "control.npz", **steps.control())
    facts = {"mesh": dataclasses.asdict(config.mesh), "flops": flops}
    (folder / "step.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{folder}: the lowered step of {workload}")


def run(folder: Path, steps: int, peak_tflops: float | None) -> None:
    """Compiles the step of a folder, makes some steps, and prints what they took."""
    mesh, flops, arguments = read(folder)
    devices = runtime.start(mesh)
    initialize = compiled(folder / "initialize", devices)
    train_step = compiled(folder / "train", devices, donate=(0,))
    _, batch_specs, control_specs = train_step.signature.inputs
    batch = devices.put(arguments["batch"], batch_specs)
    control = devices.put(arguments["control"], control_specs)
    (state,) = initialize(control)

    def step() -> float:
        nonlocal state
        state, metrics = train_step(state, batch, control)
        return float(metrics["loss"])  # it waits for the step

    places = sum(batch_specs[name].shape[0] * batch_specs[name].shape[1] for name in IDS)
    device = devices.devices.devices.flat[0]
    name = f"{mesh.num_devices} x {device.device_kind} ({device.platform})"
    time_steps(step, steps, name, places, flops, peak_tflops)


def time_peer(workload: Workload, steps: int, peak_tflops: float | None) -> None:
    try:
        import torch
        from trainers import huggingface
    except ImportError as error:
        raise UserError(f"peer needs PyTorch and Hugging Face transformers ({error}).") from None
    if not torch.cuda.is_available():
        raise UserError(
            "PyTorch finds no GPU; on CPUs, benchmarks/training.py compares with peers."
        )
    losses: list[float] = []
    train, facts = huggingface.prepared(workload, losses, "cuda")

    def step() -> float:
        train()
        return losses[-1]

    way = f", {workload.variant}" if workload.variant else ""
    model = "NllbMoe" if workload.experts else "M2M100"
    name = f"{model}, {workload.precision}{way}, 1 x {torch.cuda.get_device_name()}"
    try:
        for _ in range(WARM_UP):
            step()
        time_steps(step, steps, name, workload.places, facts()["gflop"] * 1e9, peak_tflops)
    except RuntimeError as error:  # such as too little memory
        raise UserError(f"{name}: {error}") from None


def time_steps(
    step: Callable[[], float],
    steps: int,
    name: str,
    places: int,
    flops: float,
    peak_tflops: float | None,
) -> None:
    """Times a step, which returns its loss, and prints what it takes."""
    seconds, losses = [], []
    for _ in range(WARM_UP + steps):
        began = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - began)
    if not np.isfinite(losses).all():
        raise UserError(f"{name}: the loss is not finite: {losses}")
    timed = sorted(seconds[WARM_UP:])
    median = statistics.median(timed)
    print(
        f"{name}: {1e3 * median:.2f} ms a step "
        f"({1e3 * timed[0]:.2f} to {1e3 * timed[-1]:.2f} in {steps} steps), "
        f"{places / median:,.0f} places/s, loss {losses[0]:.3f} to {losses[-1]:.3f}"
    )
    rate = flops / median / 1e12
    share = "" if peak_tflops is None else f", {rate / peak_tflops:.1%} of the peak"
    print(f"{flops / 1e9:.4g} GFLOP a step before it is optimized: {rate:.4g} TFLOP/s{share}")


def read(folder: Path) -> tuple[Mesh, float, dict[str, dict[str, np.ndarray]]]:
    """Returns the mesh, the operations of a step as XLA counts them, and the arguments."""
    try:
        facts = json.loads((folder / "step.json").read_text())
        mesh, flops = facts["mesh"], float(facts["flops"])
        mesh = Mesh(**{k: tuple(v) if isinstance(v, list) else v for k, v in mesh.items()})
        arguments = {name: dict(np.load(folder / f"{name}.npz")) for name in ("batch", "control")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{folder} has no step that can be read ({error}). Write it with: "
            f"accelerator.py lower {folder}"
        ) from None
    return mesh, flops, arguments


def compiled(artifact: Path, devices: runtime.Runtime, donate: tuple[int, ...] = ()) -> Program:
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
    return Program(signature, executable, 0.0, took)


if __name__ == "__main__":
    sys.exit(main())
