"""The chip table: figures that must fit each other."""

import math

from gshard_nmt.spmd.chips import CHIPS


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
