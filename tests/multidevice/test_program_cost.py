"""The cost of a program that is not a translation model."""

import numpy as np
import tensorflow as tf

from gshard_nmt.inspection.compute import Work
from gshard_nmt.inspection.program_cost import cost_of
from gshard_nmt.spmd import ahead_of_time
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology

TOPOLOGY = Topology.parse("cpu:8")


def test_the_cost_is_that_of_one_device():
    """A product [16, 32] x [32, 64], whose sum is split over 8 devices."""
    mesh = Mesh(("x",), (8,), rules={"B": "x"})
    specs = {
        "a": ArraySpec((16, 32), np.dtype(np.float32), "_B"),
        "b": ArraySpec((32, 64), np.dtype(np.float32), "B_"),
    }
    lowered = lower(lambda group: [{"c": tf.matmul(group["a"], group["b"])}], [specs], [{}], mesh)
    devices = ahead_of_time.devices_of(TOPOLOGY, mesh)
    cost = cost_of(ahead_of_time.compile_for(TOPOLOGY, devices, lowered), devices, lowered)
    assert cost.memory.argument == (16 * 32 + 32 * 64) * 4 // 8
    assert cost.total.flops == 2 * 16 * 32 * 64 / 8
    assert cost.recomputed == Work()
    assert cost.count("all-reduce") == 1
    assert cost.bytes_of("all-reduce") == 16 * 64 * 4
    assert cost.memory.peak >= cost.memory.argument + 16 * 64 * 4
    assert cost.step_seconds is None
