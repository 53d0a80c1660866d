"""Measures collectives on the devices of this machine, as GShard Figure 9 does.

    .venv/bin/python benchmarks/collectives.py --config demo --gin 'Mesh.shape = (2,)' --rounds 10

It takes the devices that training would take: accelerators, or virtual CPU devices. These share the
cores and the memory of this machine, so times grow with their number as the machine does and not as a
network would. All programs run in turns, once a round. A figure is the median of the rounds, with the
range. It was tried on CPU devices only. benchmarks/step.py measures the parts of a layer (Figure 8).
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from harness.page import table
from harness.rounds import median_text

from gshard_nmt.settings.config import Config, find_config
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime

KINDS = ("all-to-all", "all-reduce", "all-gather", "collective-permute")
SIZES = (16 * 2**10, 256 * 2**10, 2**20, 4 * 2**20)
"""Bytes on one device of the collectives: the output of an all-gather, the input of other kinds."""
TIMES = 8
"""Collectives in a program, one after the other, which hide the time of its start."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--config", default="demo", help="a config by name or by path")
    parser.add_argument("--gin", action="append", default=[], help="a setting, as for gshard-train")
    parser.add_argument("--rounds", type=int, default=10, help="how often each program runs")
    arguments = parser.parse_args()
    config = load_config(str(find_config(arguments.config)), arguments.gin)
    print("\n\n".join(measured(config, arguments.rounds)))


def measured(config: Config, rounds: int, sizes: Sequence[int] = SIZES) -> list[str]:
    """Returns the table of the times, and of how they grow with the number of devices."""
    devices = list(runtime.start(config.mesh).devices.devices.ravel())
    numbers = [n for n in range(2, len(devices) + 1) if len(devices) % n == 0]
    keys = [(kind, n, size) for kind in KINDS for n in numbers for size in sizes]
    programs = {key: collective(key[0], devices[: key[1]], key[2]) for key in keys}
    seconds = in_turns(programs, rounds)
    rows = [("collective", "devices", "KiB", "milliseconds", "range")]
    for kind, number, size in keys:
        times = [1e3 * s / TIMES for s in seconds[kind, number, size]]
        rows.append((kind, str(number), f"{size / 2**10:,.0f}", *median_text(times, ".3f")))
    growth = [("collective", "exponent", "range", "GShard 5.3")]
    paper = {"all-to-all": "0.5", "all-reduce": "0"}
    for kind in KINDS if len(numbers) > 1 else ():
        logs = [np.log(seconds[kind, n, sizes[-1]]) for n in numbers]
        exponents = list(np.polyfit(np.log(numbers), logs, 1)[0])
        growth.append((kind, *median_text(exponents, ".2f"), paper.get(kind, "")))
    return [table(lines) for lines in (rows, growth) if len(lines) > 1]


def in_turns(programs: dict[Any, Callable[[], Any]], rounds: int) -> dict[Any, list[float]]:
    import jax

    seconds: dict[Any, list[float]] = {key: [] for key in programs}
    for number in range(rounds + 1):
        for key, program in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(program())
            if number:
                seconds[key].append(time.perf_counter() - began)
    return seconds


def collective(kind: str, devices: Sequence[Any], nbytes: int) -> Callable[[], Any]:
    import jax

    count = len(devices)
    width = -(-nbytes // (4 * count))
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    # On one device: [1, width] to be gathered, [D, width] otherwise.
    rows = count if kind == "all-gather" else count * count
    argument = jax.device_put(
        np.ones((rows, width), np.float32), jax.sharding.NamedSharding(mesh, spec)
    )
    apply = {
        "all-to-all": lambda x: jax.lax.all_to_all(x, "x", 0, 0, tiled=True),
        "all-reduce": lambda x: jax.lax.psum(x, "x") / count,
        "all-gather": lambda x: jax.lax.all_gather(x, "x", axis=0, tiled=True),
        "collective-permute": lambda x: jax.lax.ppermute(
            x, "x", [(i, (i + 1) % count) for i in range(count)]
        ),
    }[kind]

    def repeated(x):
        for _ in range(TIMES):
            # Without a barrier, XLA could merge or remove collectives.
            x = jax.lax.optimization_barrier(apply(x))
            x = x[:1] if kind == "all-gather" else x
        return x

    mapped = jax.shard_map(repeated, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    executable = jax.jit(mapped).lower(argument).compile()
    return lambda: executable(argument)


if __name__ == "__main__":
    main()
