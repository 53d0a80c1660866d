"""This package as a trainer of benchmarks/training.py, which starts it."""

import importlib.metadata
from pathlib import Path

import numpy as np
from harness.turns import take_turns
from trainers.workload import Workload, checked

from gshard_nmt.data.text.vocabulary import BOS
from gshard_nmt.inspection import hlo
from gshard_nmt.inspection.compute import product_flops
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.machine import restart_with_large_heaps

BASE = Path(__file__).with_name("base.gin")


def main() -> None:
    restart_with_large_heaps()  # as gshard-train does
    workload = Workload.of_command_line(__doc__)
    config = config_of(workload)
    # XLA divides the work of a program among the cores that it sees when it compiles.
    programs = Path(workload.folder) / f"programs-{len(workload.cores)}-cores"
    devices = runtime.start(config.mesh, programs)
    steps = CompiledSteps(config, step_functions(config), devices)
    state, control = steps.initialize(), steps.control()
    batch = devices.put(batch_of(workload), steps.batch_specs)
    losses = []

    def train() -> None:
        nonlocal state
        for _ in range(workload.steps):
            state, metrics = steps.train_step(state, batch, control)
            metrics["loss"].block_until_ready()
        losses.append(float(metrics["loss"]))

    take_turns(train, lambda: facts(steps, workload.steps, losses))


def facts(steps: CompiledSteps, steps_of_turn: int, losses: list[float]) -> dict:
    program, devices = steps.train_step, steps.config.mesh.num_devices
    weights = weight_specs(steps.functions)
    sizes = {name: int(np.prod(spec.shape)) for name, spec in weights.items()}
    return {
        "versions": {name: importlib.metadata.version(name) for name in ("jaxlib", "tensorflow")},
        "parameters": sum(sizes.values()),
        "embeddings": sum(size for name, size in sizes.items() if name.endswith("_embedding")),
        "gflop": flops_of(program.executable.as_text()) * devices * steps_of_turn / 1e9,
        "memory": program.memory().total,
        "losses": checked(losses),
    }


def flops_of(text: str) -> int:
    module = hlo.parse(text)
    return sum(
        times * sum(product_flops(module, inner) for inner in module.fused(instruction))
        for instruction, times in module.executed()
    )


def config_of(workload: Workload) -> Config:
    # As torch.autocast: products in bfloat16 are faster than activations in bfloat16, and lose less.
    products = "bfloat16" if workload.precision == "bfloat16" else "default"
    settings = {
        "Mesh.shape": (workload.devices,),
        **workload.sizes,
        "Model.experts": workload.experts,
        "Model.matmul_precision": products,
        "Model.input_dropout": workload.dropout,
        "Model.residual_dropout": workload.dropout,
        "Model.attention_dropout": workload.dropout,
        "Data.rows": workload.rows,
        "Data.source_length": workload.length,
        "Data.target_length": workload.length,
    }
    bindings = [f"{name} = {value!r}" for name, value in settings.items()]
    return load_config(str(BASE), [*bindings, *workload.settings])


def batch_of(workload: Workload) -> dict[str, np.ndarray]:
    shape = workload.rows, workload.length
    source, target = (np.array(workload.sentences(side)) for side in ("source", "target"))
    arrays = {
        "source_ids": source,
        "target_inputs": np.hstack([np.full((workload.rows, 1), BOS), target[:, :-1]]),
        "target_labels": target,
    }
    for side in ("source", "target"):
        arrays[f"{side}_segments"] = arrays[f"{side}_languages"] = np.ones(shape)
        arrays[f"{side}_positions"] = np.tile(np.arange(workload.length), (workload.rows, 1))
    return {name: values.astype(np.int32) for name, values in arrays.items()}


if __name__ == "__main__":
    main()
