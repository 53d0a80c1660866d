"""Measures two ways to count the requests that come before each choice of a token, in gating.

    .venv/bin/python benchmarks/numbering.py

Gating runs alone, without gradient, on one CPU device. Tokens are compared with each other, or the
requests for each expert are added up (`gshard_nmt/model/gating.py`). Both ways alternate, so that other
work on this computer slows down both.
"""

import argparse
import statistics
import time
from unittest import mock

import numpy as np
from harness import environment, page
from harness.records import Figure
from harness.rounds import Limit, median_text

from gshard_nmt.model import gating
from gshard_nmt.model.gating import Gating
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import Program

TOKENS, GROUP_SIZE = 4096, 512
EXPERTS = (8, 32, 64, 128, 512)
WAYS = {"sums": 0, "comparisons": TOKENS}
"""The largest number of tokens for each expert with which tokens are compared, for each way."""


def program_of(way: str, experts: int, devices: runtime.Runtime) -> Program:
    """Compiles logits -> slots and weights, with this way of counting."""

    def slots(inputs):
        logits = inputs["logits"]
        routing = gating.assign(logits, tf.ones(logits.shape[:2], tf.bool), Gating(experts))
        return [{"slot": routing.slot, "weight": routing.weight}]

    shape = (TOKENS // GROUP_SIZE, GROUP_SIZE, experts)
    specs = [{"logits": ArraySpec(shape, np.dtype(np.float32))}]
    with mock.patch.object(gating, "COMPARED_TOKENS_PER_EXPERT", WAYS[way]):
        return devices.compile(f"{way} {experts}", lambda: lower(slots, specs, [{}], devices.mesh))


def times_of(experts: int, devices: runtime.Runtime, limit: Limit) -> dict[str, list[float]]:
    """Returns the milliseconds of each way in each round."""
    programs = {way: program_of(way, experts, devices) for way in WAYS}
    rng = np.random.default_rng(0)
    (specs,) = programs["sums"].signature.inputs
    logits = rng.normal(size=specs["logits"].shape).astype(np.float32)
    arguments = [devices.put({"logits": logits}, specs)]
    for program in programs.values():
        seconds_of(program, arguments)  # warms up
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    while not limit.is_over(len(times["sums"])):
        for way, program in programs.items():
            times[way].append(seconds_of(program, arguments) * 1e3)
    return times


def seconds_of(program: Program, arguments: list[dict]) -> float:
    """Returns the time of one call, until its results are ready."""
    began = time.perf_counter()
    (routing,) = program(*arguments)
    for array in routing.values():
        array.block_until_ready()
    return time.perf_counter() - began


def main() -> None:
    """Prints a table, and writes it to docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    page.add_flags(parser, rounds=15)
    arguments = parser.parse_args()
    busy, limit = environment.busy(), page.limit_of(arguments)
    devices = runtime.start(Mesh(("x",), (1,)))
    header = (
        "experts",
        "tokens for each",
        *(f"{way}, ms" for way in WAYS),
        "comparisons, times sums",
    )
    rows, figures, rounds = [header], [], []
    for experts in EXPERTS:
        times = times_of(experts, devices, limit.part(1 / len(EXPERTS)))
        rounds.append(len(times["sums"]))
        medians = [f"{statistics.median(times[way]):.2f}" for way in WAYS]
        ratios = {
            way: [a / b for a, b in zip(times[way], times["sums"], strict=True)] for way in WAYS
        }
        compared = " ".join(median_text(ratios["comparisons"], ".2f"))
        rows.append((str(experts), f"{GROUP_SIZE / experts:g}", *medians, compared))
        of = f", {experts} experts"
        figures += [Figure.of(way + of, "ms", times[way], f"sums{of}", ratios[way]) for way in WAYS]
    page.publish(
        page.Section("numbering", page.table(rows), figures, min(rounds)), arguments.page, busy
    )


if __name__ == "__main__":
    main()
