import importlib.util
import math
import subprocess
import sys

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import topology as topologies
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import CHIPS, DoesNotFit, Topology


@pytest.mark.parametrize(
    ("name", "chips", "devices"),
    [
        ("v3:32x32", 1024, 2048),  # the paper's pod: a device is a core
        ("v3:8x8", 64, 128),
        ("v4:4x4x4", 64, 64),
        ("v5e:16x16", 256, 256),
        ("v5p:8x8x8", 512, 512),
        ("v6e:16x16", 256, 256),
        ("cpu:8", 8, 8),
    ],
)
def test_names(name, chips, devices):
    topology = Topology.parse(name)
    assert (topology.num_chips, topology.num_devices) == (chips, devices)


KNOWN = (
    "known are v3:2x2 to v3:32x32, v4:2x2x1 to v4:12x16x16, v5e:2x2 to v5e:16x16, v5p:2x2x1 to "
    "v5p:16x20x28, v6e:2x2 to v6e:16x16 and cpu:1 to cpu:512; for instance v3:32x32, v4:4x4x4, "
    "v5e:16x16, v5p:8x8x8, v6e:16x16, cpu:8."
)

CPU = "CPU devices are one number, from 1 to 512, as in cpu:8."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v9:2x2", f"--topology v9:2x2: there is no such topology; {KNOWN}"),
        ("v3", f"--topology v3: there is no such topology; {KNOWN}"),
        ("cpu:0", f"--topology cpu:0: {CPU}"),
        ("cpu:100000", f"--topology cpu:100000: {CPU}"),
        ("cpu:2x2", f"--topology cpu:2x2: {CPU}"),
        (
            "v4:4x4",
            "--topology v4:4x4: v4 chips form a torus of 3 axes; give 3 sizes, for instance v4:4x4x4.",
        ),
        (
            "v3:64x64",
            "--topology v3:64x64: the largest slice of v3 has 32x32 chips, in any order; every size "
            "is at least 1 and at most its axis.",
        ),
        ("v3:3x4", "--topology v3:3x4: a host has 2x2 chips, so the first two sizes are even."),
    ],
)
def test_an_unknown_topology_lists_the_known_ones(name, message):
    with pytest.raises(UserError) as error:
        Topology.parse(name)
    assert str(error.value) == message


def test_the_pods_rings_are_closed():
    assert Topology.parse("v3:32x32").wraps() == (True, True)
    assert Topology.parse("v3:16x32").wraps() == (False, True)
    assert Topology.parse("v4:4x4x8").wraps() == (True, True, True)
    assert Topology.parse("v5p:2x2x2").wraps() == (False, False, False)


def test_peak_flops_are_what_the_matrix_units_do_at_that_clock():
    # Units of a device and their side: 128 x 128 multiply-adds each cycle, v6e 256 x 256.
    units = {"v3": (2, 128), "v4": (8, 128), "v5e": (4, 128), "v5p": (8, 128), "v6e": (4, 256)}
    for name, (count, side) in units.items():
        flops = CHIPS[name].clock * count * side * side * 2
        assert math.isclose(flops, CHIPS[name].peak_flops, rel_tol=0.01), name


def test_a_mesh_of_another_size_is_refused():
    with pytest.raises(UserError, match=r"Mesh.shape \[4\] is 4 devices; v3:2x2 has 8"):
        topologies.devices_of(Topology.parse("v3:2x2"), Mesh(("x",), (4,)))


def test_without_libtpu_the_one_command_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"not installed: pip install 'libtpu==0.0.42.\*'"):
        topologies.devices_of(Topology.parse("v3:2x2"), Mesh(("x",), (8,)))


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
            (20.5, 15.48, "the program"),
        ),
    ],
)
def test_the_compilers_two_sizes_are_read(message, sizes):
    explained = topologies._explained(Topology.parse("v3:2x2"), RuntimeError(message))
    assert isinstance(explained, DoesNotFit)
    needed, available, what = sizes
    assert explained.needed_bytes == int(needed * 2**30)
    assert explained.available_bytes == int(available * 2**30)
    assert explained.what == what


def test_another_refusal_is_one_line_without_a_stack_trace():
    error = RuntimeError("INTERNAL: something\n  deep inside\n")
    explained = topologies._explained(Topology.parse("v3:2x2"), error)
    assert isinstance(explained, UserError)
    assert "the compiler for v3:2x2 refuses this program: INTERNAL: something deep" in str(
        explained
    )


def test_one_process_has_devices_for_the_largest_of_several_cpu_topologies():
    """In a process of its own: jax starts its CPU devices once."""
    code = """
from gshard_nmt.errors import UserError
from gshard_nmt.spmd import topology as t
from gshard_nmt.spmd.mesh import Mesh
topologies = [t.Topology.parse(name) for name in ("cpu:2", "cpu:4")]
t.check_available(topologies)
for topology in topologies:
    t.devices_of(topology, Mesh(("x",), (topology.num_devices,)))
try:
    t.check_available([t.Topology.parse("cpu:8")])
except UserError as error:
    assert "this process has started 4 CPU devices already" in str(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
