"""Shows where the time of a training step goes, and what its matrix products take alone.

    .venv/bin/python benchmarks/step.py                            # the model of docs/performance.md
    .venv/bin/python benchmarks/step.py --dense
    .venv/bin/python benchmarks/step.py --config demo --gin "Mesh.shape = (1,)"

It compiles the whole training step of a config as gshard-train does, runs it on random tokens without
padding, and traces some steps. Then it times each matrix product of the compiled program by itself, with
its shapes and layouts. Times are those of a device, on one core each.
"""

import argparse
import collections
import dataclasses
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from harness import environment, page
from harness.records import Figure
from trainers import ours
from trainers.workload import Workload

from gshard_nmt.inspection import hlo
from gshard_nmt.inspection.compute import find_origin, product_flops
from gshard_nmt.inspection.hlo import HloModule, Instruction
from gshard_nmt.run.arrays import batch_specs, step_functions
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import machine, runtime

SENTENCES = 4
"""The sentences of each row of the batch."""


def main() -> None:
    machine.restart_with_large_heaps()  # as gshard-train does
    arguments = parse_arguments()
    busy, config = environment.busy(), config_of(arguments)
    # XLA has a thread for each core that it sees, and shares them among the devices.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: config.mesh.num_devices])
    # XLA's cache would give the program of another version, with the old names of its instructions.
    devices = runtime.start(config.mesh)
    steps = CompiledSteps(config, step_functions(config), devices)
    run = Steps(steps)
    run.times(3)
    walls = run.times(arguments.rounds)
    step_ms = statistics.median(walls) * 1e3
    module = hlo.parse(steps.train_step.executable.as_text())
    spent = run.trace(5)
    alone, flops = products_alone(module)
    text = (
        f"{parts_table(module, spent, step_ms)}\n"
        f"The step takes {step_ms / alone:.2f} times as long as its products alone ({alone:.1f} ms, "
        f"{flops / 1e9:.1f} GFLOP).\n"
    )
    milliseconds = [seconds * 1e3 for seconds in walls]
    figures = [
        Figure.of("step", "ms", milliseconds, "products alone", [m / alone for m in milliseconds]),
        Figure.of("products alone", "ms", [alone]),
    ]
    is_whole = not (arguments.config or arguments.gin or arguments.dense)
    section = page.Section("step", text, figures, len(walls), is_whole)
    page.publish(section, arguments.page, busy)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", help="a config; default: the model of docs/performance.md")
    parser.add_argument("--dense", action="store_true", help="without experts")
    parser.add_argument("--gin", action="append", default=[], metavar="BINDING", help="a setting")
    page.add_flags(parser, rounds=10, has_limit=False)
    return parser.parse_args()


def config_of(arguments: argparse.Namespace) -> Config:
    # The products that gshard-train chooses on this machine.
    products = "bfloat16" if machine.multiplies_bfloat16() else "default"
    settings = (f"Model.matmul_precision = '{products}'", *arguments.gin)
    if arguments.config:
        return load_config(arguments.config, settings)
    experts = 0 if arguments.dense else 8
    return ours.config_of(Workload(cores=(), experts=experts, settings=settings))


class Steps:
    """The training steps of a run on one batch."""

    def __init__(self, steps: CompiledSteps) -> None:
        self._steps = steps
        self._state, self._control = steps.initialize(), steps.control()
        self._batch = steps.devices.put(batch_of(steps.config), steps.batch_specs)

    def times(self, count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            self._state, metrics = self._steps.train_step(self._state, self._batch, self._control)
            metrics["loss"].block_until_ready()
            seconds.append(time.perf_counter() - began)
        return seconds

    def trace(self, count: int) -> dict[str, float]:
        import jax

        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                self.times(count)
            (file,) = Path(folder).rglob("*.xplane.pb")
            profile = jax.profiler.ProfileData.from_file(str(file))
        spent: dict[str, float] = collections.defaultdict(float)
        for plane in profile.planes:
            for line in plane.lines:
                for event in line.events:
                    facts = dict(event.stats)
                    if "hlo_op" in facts:
                        spent[str(facts["hlo_op"])] += event.duration_ns / 1e6
        share = count * self._steps.devices.mesh.num_devices
        return {name: total / share for name, total in spent.items()}


def batch_of(config: Config) -> dict[str, np.ndarray]:
    rng, sizes = np.random.default_rng(0), config.data
    batch = {}
    for name, spec in batch_specs(config).items():
        rows, length = spec.shape
        part = -(-length // SENTENCES)
        places = np.tile(np.arange(length), (rows, 1))
        if name.endswith("segments"):
            values = places // part + 1
        elif name.endswith("positions"):
            values = places % part
        elif name.endswith("languages"):
            values = np.ones_like(places)
        else:
            source = name.startswith("source")
            size = sizes.source_vocabulary if source else sizes.target_vocabulary
            values = rng.integers(16, size, (rows, length))
        batch[name] = values.astype(np.int32)
    return batch


def parts_table(module: HloModule, spent: dict[str, float], step_ms: float) -> str:
    parts: dict[tuple[str, str], list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for name, milliseconds in leaves(module, spent):
        instruction = module.by_name[name]
        origin = find_origin(module, instruction)
        is_other = not has_product(module, instruction)
        parts[origin.kind, origin.direction][is_other] += milliseconds
    total = sum(map(sum, parts.values()))
    rows = [(f"step of {step_ms:.1f} ms", "direction", "products, ms", "other, ms", "share")]
    for (kind, direction), both in sorted(parts.items(), key=lambda item: -sum(item[1])):
        cells = (f"{value:.2f}" for value in both)
        rows.append((kind, direction, *cells, f"{sum(both) / total:.1%}"))
    whole = [sum(values) for values in zip(*parts.values(), strict=True)]
    rows.append(("all traced instructions", "", *(f"{value:.2f}" for value in whole), "100.0%"))
    return page.table(rows)


def has_product(module: HloModule, instruction: Instruction) -> bool:
    return any(inner.opcode == "dot" for inner in module.fused(instruction))


def leaves(module: HloModule, spent: dict[str, float]) -> Iterator[tuple[str, float]]:
    for name, milliseconds in spent.items():
        instruction = module.by_name.get(name)
        if instruction is None or instruction.opcode in ("while", "call", "conditional"):
            continue
        yield name, milliseconds


@dataclasses.dataclass(frozen=True)
class Product:
    """The shapes of a matrix product, which say what it costs."""

    lhs: hlo.Array
    rhs: hlo.Array
    dimensions: tuple[
        tuple[tuple[int, ...], tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]
    ]
    """As jax.lax.dot_general takes them: ((contracting), (batch))."""


def products(module: HloModule) -> Iterator[tuple[Product, Instruction, int]]:
    for executed, times in module.executed():
        for inner in module.fused(executed):
            if inner.opcode == "dot":
                lhs, rhs = (module.by_name[name].arrays[0] for name in inner.operands[:2])
                dimensions = (
                    (
                        numbers(inner, "lhs_contracting_dims"),
                        numbers(inner, "rhs_contracting_dims"),
                    ),
                    (numbers(inner, "lhs_batch_dims"), numbers(inner, "rhs_batch_dims")),
                )
                yield Product(lhs, rhs, dimensions), inner, times


def numbers(instruction: Instruction, name: str) -> tuple[int, ...]:
    match = re.search(name + r"=\{([\d,]*)\}", instruction.attributes)
    return tuple(int(n) for n in match[1].split(",") if n) if match else ()


def products_alone(module: HloModule) -> tuple[float, float]:
    """Returns the milliseconds that all products take by themselves, and their FLOPs."""
    times: collections.Counter[Product] = collections.Counter()
    flops = 0.0
    for product, inner, count in products(module):
        times[product] += count
        flops += count * product_flops(module, inner)
    return sum(count * alone_ms(product) for product, count in times.items()), flops


def alone_ms(product: Product) -> float:
    import jax

    dtypes = {"f32": "float32", "bf16": "bfloat16"}
    rng = np.random.default_rng(0)
    device = jax.devices()[0]
    operands = [
        jax.device_put(jax.numpy.asarray(rng.normal(size=a.dims), dtypes[a.dtype]), device)
        for a in (product.lhs, product.rhs)
    ]
    multiply = jax.jit(
        lambda lhs, rhs: jax.lax.dot_general(
            lhs, rhs, product.dimensions, preferred_element_type="float32"
        )
    )
    multiply(*operands).block_until_ready()
    seconds = []
    for _ in range(7):
        began = time.perf_counter()
        multiply(*operands).block_until_ready()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3


if __name__ == "__main__":
    main()
