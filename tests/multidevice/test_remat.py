"""Recomputation lowers what a TPU program keeps: asserted on programs compiled for a slice of v3."""

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
# Wide activations and small weights, so that what is kept for the backward pass is most of the memory.
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
    """What a device holds of a training step beside its arguments and results."""
    steps, topology = StepFunctions(model, Optimizer(), 1000, 1000), Topology.parse("v3:2x2")
    devices = ahead_of_time.devices_of(topology, MESH)
    state = state_specs(steps)
    letters = {name: spec.letters for name, spec in state.items()}
    batch = {name: ArraySpec((ROWS, LENGTH), np.dtype(np.int32), "BL") for name in BATCH_ARRAYS}
    program = lower(steps.train_step, [state, batch, CONTROL], [letters, {}], MESH)
    compiled = ahead_of_time.compile_for(topology, devices, program, donate=(0,))
    return compiled.executable.memory_analysis().temp_size_in_bytes


WAYS = {"remembered": MODEL, "recomputed": dataclasses.replace(MODEL, remat="layer")}


@pytest.mark.slow
def test_recomputing_each_layer_keeps_less_than_remembering_all():
    found = subprocess.run(  # libtpu is at home in one process, and other tests need it too
        [sys.executable, "-m", "tests.multidevice.test_remat"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment(),
    )
    kept = json.loads(found.stdout.splitlines()[-1])
    # 110 and 82 MiB, gradients and the optimiser's work included.
    assert kept["recomputed"] < 0.85 * kept["remembered"], kept


if __name__ == "__main__":
    print(json.dumps({way: temporary_bytes(model) for way, model in WAYS.items()}))
