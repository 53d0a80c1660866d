"""The compilers' devices and its errors. tests/multidevice/test_remat.py compiles for a slice."""

import importlib.util
import subprocess
import sys

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import ahead_of_time
from gshard_nmt.spmd.ahead_of_time import DoesNotFit
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology


@pytest.mark.parametrize(
    ("topology", "command"),
    [("v3:2x2", "libtpu==0.0.42.*"), ("h100:8", "jax-cuda13-plugin[with-cuda]==0.10.2")],
)
def test_without_a_compiler_the_one_command_is_named(monkeypatch, topology, command):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        ahead_of_time.devices_of(Topology.parse(topology), Mesh(("x",), (8,)))
    assert f"not installed: pip install '{command}'" in str(error.value)


@pytest.mark.parametrize(
    ("message", "sizes"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (39.03G) exceeds available HBM (15.48G).",
            (39.03, 15.48, "HLO temporaries"),
        ),
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
            "hbm. Used 20.50G of 15.48G hbm. Exceeded hbm capacity by 5.02G.",
            (20.5, 15.48, "the program's arrays"),
        ),
    ],
)
def test_the_compilers_two_sizes_are_read(message, sizes):
    explained = ahead_of_time._explained(Topology.parse("v3:2x2"), RuntimeError(message))
    assert isinstance(explained, DoesNotFit)
    needed, available, what = sizes
    assert explained.needed_bytes == int(needed * 2**30)
    assert explained.available_bytes == int(available * 2**30)
    assert explained.what == what


def test_one_process_has_devices_for_the_largest_of_several_cpu_topologies():
    """In a process of its own: jax starts its CPU devices once."""
    code = """
from gshard_nmt.errors import UserError
from gshard_nmt.spmd import ahead_of_time
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology
topologies = [Topology.parse(name) for name in ("cpu:2", "cpu:4")]
ahead_of_time.check_available(topologies)
for topology in topologies:
    ahead_of_time.devices_of(topology, Mesh(("x",), (topology.num_devices,)))
try:
    ahead_of_time.check_available([Topology.parse("cpu:8")])
except UserError as error:
    assert "this process has started 4 CPU devices already" in str(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
