"""Names of topologies, the shapes and rings that follow from them, and figures of chips."""

import math
import subprocess
import sys

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.topology import CHIPS, Topology


@pytest.mark.parametrize(
    ("name", "chips", "devices"),
    [
        ("v3:32x32", 1024, 2048),  # the paper's pod: a device is a core
        ("v4:4x4x4", 64, 64),
        ("h100:8", 8, 8),
        ("cpu:8", 8, 8),
    ],
)
def test_names(name, chips, devices):
    topology = Topology.parse(name)
    assert (topology.num_chips, topology.num_devices) == (chips, devices)


KNOWN = (
    "known are v3:2x2 to v3:32x32, v4:2x2x1 to v4:12x16x16, v5e:2x2 to v5e:16x16, v5p:2x2x1 to "
    "v5p:16x20x28, v6e:2x2 to v6e:16x16, a100:1 to a100:4096, h100:1 to h100:4096, h200:1 to h200:4096, "
    "b200:1 to b200:4096 and cpu:1 to cpu:512, for instance v3:32x32, v4:4x4x4, v5e:16x16, v5p:8x8x8, "
    "v6e:16x16, h100:8, cpu:8."
)

GPUS = (
    "a host has 8 GPUs. Give their number, from 1 to 8 or a multiple of 8 up to 4096, for instance "
    "h100:8."
)
CPU = "the number of CPU devices must be from 1 to 512. Write for instance cpu:8."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v9:2x2", f"--topology v9:2x2: there is no such topology; {KNOWN}"),
        ("cpu:0", f"--topology cpu:0: {CPU}"),
        ("v4:4x4",
         "--topology v4:4x4: v4 chips form a torus of 3 axes. Give 3 sizes, for instance v4:4x4x4."),
        (
            "v3:64x64",
            "--topology v3:64x64: the largest slice of v3 has 32x32 chips. "
            "Give sizes from 1 up to these numbers, in any order.",
        ),
        ("h100:12", f"--topology h100:12: {GPUS}"),
        ("v3:3x4", "--topology v3:3x4: each host has 2x2 chips, so the first two sizes must be even."),
    ],
)  # fmt: skip
def test_an_unknown_topology_lists_the_known_ones(name, message):
    with pytest.raises(UserError) as error:
        Topology.parse(name)
    assert str(error.value) == message


def test_the_pods_rings_are_closed():
    assert Topology.parse("v3:32x32").wraps() == (True, True)
    assert Topology.parse("v3:16x32").wraps() == (False, True)
    assert Topology.parse("v4:4x4x8").wraps() == (True, True, True)
    assert Topology.parse("v5p:2x2x2").wraps() == (False, False, False)


def test_a_topology_needs_no_jax():
    code = "import sys, gshard_nmt.spmd.topology; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_peak_flops_are_those_of_the_matrix_units_at_this_clock():
    # Matrix units of a device and their side: a unit of side 128 does 128 x 128 multiply-adds a cycle.
    units = {"v3": (2, 128), "v4": (8, 128), "v5e": (4, 128), "v5p": (8, 128), "v6e": (4, 256)}
    for name, (count, side) in units.items():
        flops = CHIPS[name].clock * count * side * side * 2
        assert math.isclose(flops, CHIPS[name].peak_flops, rel_tol=0.01), name


def test_figures_are_per_device():
    """A v3 chip has 123 TFLOP/s, 32 GiB and 900 GB/s, and its two cores are devices of their own."""
    v3 = CHIPS["v3"]
    assert v3.devices_per_chip == 2
    assert v3.devices_per_chip * v3.peak_flops == 123e12
    assert v3.devices_per_chip * v3.hbm_bytes == 32 * 2**30
    assert v3.devices_per_chip * v3.hbm_bandwidth == 900e9


def test_the_compiler_gets_the_figures_of_the_gpu():
    lines = {line.strip() for line in CHIPS["a100"].description.splitlines()}
    assert {"core_count: 108", "memory_bandwidth: 2039040000000", "major: 8", "minor: 0"} <= lines
    assert 'device_description_str: "a100"' in lines
