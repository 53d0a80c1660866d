"""Measures three implementations of dispatch, forward and backward, for three group sizes.

    .venv/bin/python benchmarks/dispatch.py

One MoE layer runs on one CPU device. The cost of GShard's einsums with one-hot tensors grows with the
group size, and the cost of the gathers of section 3.2 does not. Blocks have no capacity: their cost
depends on the number of tokens alone. Each figure is the median of several runs. The implementations
alternate, so that other work on this computer slows down all of them.
"""

import argparse
import statistics
import time

import numpy as np
from harness import environment, page
from harness.records import Figure
from harness.rounds import Limit, median_text

from gshard_nmt.model.gating import Gating
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.moe import MoE, declare_moe, moe_layer
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import Program

TOKENS, MODEL_DIM, HIDDEN_DIM, EXPERTS = 4096, 256, 1024, 8
GROUP_SIZES = (128, 512, 2048)
DISPATCHES = ("einsum", "gather", "blocks")
COMPARED = ("einsum, times gather", "blocks, times gather")


def program_of(dispatch: str, group_size: int, devices: runtime.Runtime) -> Program:
    settings = MoE(
        gating=Gating(EXPERTS, second_expert="all"),
        hidden_dim=HIDDEN_DIM,
        num_groups=0,
        group_size=group_size,
        dispatch=dispatch,
    )
    declared = declare_moe(MODEL_DIM, settings)

    def forward_and_backward(inputs, output_gradients):
        x = inputs["x"]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y, routing = moe_layer(inputs, x, tf.ones(x.shape[:2], tf.bool), settings, Mode())
            loss = tf.reduce_sum(y * output_gradients["y"]) + routing.aux_loss
        return [tape.gradient(loss, inputs, output_gradients=output_gradients["one"])]

    arrays = {name: ArraySpec(p.shape, np.dtype(np.float32)) for name, p in declared.items()}
    rows = ArraySpec((TOKENS // 64, 64, MODEL_DIM), np.dtype(np.float32))
    specs = [arrays | {"x": rows}, {"y": rows, "one": ArraySpec((), np.dtype(np.float32))}]
    return devices.compile(
        f"{dispatch} {group_size}", lambda: lower(forward_and_backward, specs, [{}], devices.mesh)
    )


def arguments_of(program: Program, devices: runtime.Runtime) -> list[dict]:
    rng = np.random.default_rng(0)
    groups = []
    for specs in program.signature.inputs:
        arrays = {
            name: rng.normal(size=spec.shape).astype(np.float32) / 16
            for name, spec in specs.items()
        }
        groups.append(devices.put(arrays, specs))
    return groups


def seconds_of(program: Program, arguments: list[dict]) -> float:
    began = time.perf_counter()
    (gradients,) = program(*arguments)
    for array in gradients.values():
        array.block_until_ready()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    page.add_flags(parser, rounds=7)
    arguments = parser.parse_args()
    busy, limit = environment.busy(), page.limit_of(arguments)
    devices = runtime.start(Mesh(("x",), (1,)))
    rows = [("group size", "capacity", *(f"{name}, ms" for name in DISPATCHES), *COMPARED)]
    figures, rounds = [], []
    for group_size in GROUP_SIZES:
        times = times_of(group_size, devices, limit.part(1 / len(GROUP_SIZES)))
        rounds.append(len(times["gather"]))
        medians = [f"{statistics.median(times[name]):.0f}" for name in DISPATCHES]
        ratios = {
            name: [a / b for a, b in zip(times[name], times["gather"], strict=True)]
            for name in DISPATCHES
        }
        compared = [" ".join(median_text(ratios[name], ".2f")) for name in ("einsum", "blocks")]
        capacity = str(Gating(EXPERTS).slots(group_size))
        rows.append((f"{group_size:,}", capacity, *medians, *compared))
        groups = f", groups of {group_size}"
        figures += [
            Figure.of(name + groups, "ms", times[name], f"gather{groups}", ratios[name])
            for name in DISPATCHES
        ]
    page.publish(
        page.Section("dispatch", page.table(rows), figures, min(rounds)), arguments.page, busy
    )


def times_of(group_size: int, devices: runtime.Runtime, limit: Limit) -> dict[str, list[float]]:
    programs = {name: program_of(name, group_size, devices) for name in DISPATCHES}
    arguments = {name: arguments_of(program, devices) for name, program in programs.items()}
    times: dict[str, list[float]] = {name: [] for name in DISPATCHES}
    for name in DISPATCHES:
        seconds_of(programs[name], arguments[name])  # warms up
    while not limit.is_over(len(times["gather"])):
        for name in DISPATCHES:
            times[name].append(seconds_of(programs[name], arguments[name]) * 1e3)
    return times


if __name__ == "__main__":
    main()
