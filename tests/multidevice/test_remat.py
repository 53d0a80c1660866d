"""Recomputation lowers memory, and a result that is kept is not computed again."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

from gshard_nmt.inspection import hlo
from gshard_nmt.inspection.compute import product_flops
from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import CONTROL, letters_of, state_specs
from gshard_nmt.spmd import ahead_of_time, runtime
from gshard_nmt.spmd.lowering import LoweredFunction, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology
from tests.integration.conftest import usual_flags
from tests.model.examples import WITHOUT_DROPOUT
from tests.multidevice.compiled_function import batch_specs

ROOT = pathlib.Path(__file__).parent.parent.parent
MESH = Mesh(("x",), (8,))
ROWS, LENGTH = 64, 128
# Activations are large and weights small, so most memory is what is kept for the backward pass.
MODEL = Model(
    encoder_layers=0,
    decoder_layers=4,
    model_dim=256,
    hidden_dim=2048,
    heads=4,
    head_dim=64,
    experts=8,
    num_groups=8,
    second_expert="all",
    dispatch="einsum",
    positions="sinusoidal",
    **WITHOUT_DROPOUT,
)


def lowered_step(model: Model, rows: int, length: int, mesh: Mesh) -> LoweredFunction:
    steps = StepFunctions(model, Optimizer(), 1000, 1000)
    state = state_specs(steps)
    inputs = [state, batch_specs(rows, length), CONTROL]
    return lower(steps.train_step, inputs, [letters_of(state), {}], mesh)


def temporary_bytes(model: Model) -> int:
    """Returns the memory of a training step on a device, besides its arguments and results."""
    topology = Topology.parse("v3:2x2")
    devices = ahead_of_time.devices_of(topology, MESH)
    program = lowered_step(model, ROWS, LENGTH, MESH)
    compiled = ahead_of_time.compile_for(topology, devices, program, donate=(0,))
    return compiled.executable.memory_analysis().temp_size_in_bytes


WAYS = {"kept": MODEL, "recomputed": dataclasses.replace(MODEL, remat="layer")}


@pytest.mark.slow
def test_recomputing_each_layer_takes_less_memory_than_keeping_all():
    process = subprocess.run(  # only one process can use libtpu at a time, and other tests use it
        [sys.executable, "-m", "tests.multidevice.test_remat"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=usual_flags(),
    )
    memory = json.loads(process.stdout.splitlines()[-1])
    # 110 and 82 MiB, including gradients and the arrays of the optimizer.
    assert memory["recomputed"] < 0.85 * memory["kept"], memory


def product_flops_of(text: str) -> int:
    """Returns the floating-point operations of all products that a program executes on a device."""
    module = hlo.parse(text)
    return sum(
        times * sum(product_flops(module, inner) for inner in module.fused(instruction))
        for instruction, times in module.executed()
    )


def test_the_backward_pass_computes_no_kept_result_again():
    """Two layers, counted by hand. An MoE layer has six all-to-alls, two of them in recomputation."""
    rows, length, devices, repeats = 4, 8, 2, 2
    mesh = Mesh(("x",), (devices,))
    small = {"model_dim": 16, "hidden_dim": 24, "heads": 2, "head_dim": 4, "experts": 4}
    model = dataclasses.replace(
        MODEL, **small, decoder_layers=repeats, moe_every=1, num_groups=2, stack="scan"
    )
    flops, all_to_alls = {}, {}
    for keeps in ("inputs", "projections"):
        lowered = lowered_step(dataclasses.replace(model, remat_keeps=keeps), rows, length, mesh)
        program = runtime.start(mesh).compile("step", lambda lowered=lowered: lowered)
        flops[keeps] = devices * product_flops_of(program.executable.as_text())
        all_to_alls[keeps] = program.collectives()["all-to-all"]
    tokens, capacity = rows * length, model.moe(training=True).slots(rows * length // 2)
    slots = 4 * capacity
    gate, dispatch, wo = 2 * tokens * 16 * 4, 2 * tokens * slots * 16, 2 * 2 * slots * 24 * 16
    projection = 2 * tokens * 16 * 2 * 4
    saved = flops["inputs"] - flops["projections"]
    assert saved == repeats * (gate + dispatch + wo + 4 * projection)
    assert all_to_alls == {"inputs": 6, "projections": 4}


if __name__ == "__main__":
    print(json.dumps({way: temporary_bytes(model) for way, model in WAYS.items()}))
