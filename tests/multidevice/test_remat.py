"""Recomputation lowers the memory of a TPU program, which is compiled for a slice of v3."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import BATCH_ARRAYS, StepFunctions
from gshard_nmt.run.arrays import CONTROL, state_specs
from gshard_nmt.spmd import ahead_of_time
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology
from tests.integration.conftest import environment

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
    input_dropout=0.0,
    residual_dropout=0.0,
    attention_dropout=0.0,
)


def temporary_bytes(model: Model) -> int:
    """Returns the memory of a training step on a device, besides its arguments and results."""
    steps, topology = StepFunctions(model, Optimizer(), 1000, 1000), Topology.parse("v3:2x2")
    devices = ahead_of_time.devices_of(topology, MESH)
    state = state_specs(steps)
    letters = {name: spec.letters for name, spec in state.items()}
    batch = {name: ArraySpec((ROWS, LENGTH), np.dtype(np.int32), "BL") for name in BATCH_ARRAYS}
    program = lower(steps.train_step, [state, batch, CONTROL], [letters, {}], MESH)
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
        env=environment(),
    )
    memory = json.loads(process.stdout.splitlines()[-1])
    # 110 and 82 MiB, including gradients and the arrays of the optimizer.
    assert memory["recomputed"] < 0.85 * memory["kept"], memory


if __name__ == "__main__":
    print(json.dumps({way: temporary_bytes(model) for way, model in WAYS.items()}))
