"""The chip table: figures that must fit each other."""

import math

import pytest

from gshard_nmt.spmd.chips import CHIPS, SLICE_BANDWIDTH, Gpu, peak_of


def test_peak_flops_are_those_of_the_matrix_units_at_this_clock():
    # Matrix units of a device and their side: a unit of side 128 does 128 x 128 multiply-adds a cycle.
    units = {"v3": (2, 128), "v4": (8, 128), "v5e": (4, 128), "v5p": (8, 128), "v6e": (4, 256)}
    for name, (count, side) in units.items():
        flops = CHIPS[name].clock * count * side * side * 2
        assert math.isclose(flops, CHIPS[name].peak_flops, rel_tol=0.01), name


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_links_are_slower_than_memory_and_memory_slower_than_the_matrix_units(chip):
    assert chip.link_bandwidth < chip.hbm_bandwidth < chip.peak_flops


def test_figures_are_per_device():
    """A v3 chip has 123 TFLOP/s, 32 GiB and 900 GB/s, and its two cores are devices of their own."""
    v3 = CHIPS["v3"]
    assert v3.devices_per_chip == 2
    assert v3.devices_per_chip * v3.peak_flops == 123e12
    assert v3.devices_per_chip * v3.hbm_bytes == 32 * 2**30
    assert v3.devices_per_chip * v3.hbm_bandwidth == 900e9


@pytest.mark.parametrize(
    "gpu", [c for c in CHIPS.values() if isinstance(c, Gpu)], ids=lambda c: c.name
)
def test_figures_of_a_gpu_fit_each_other(gpu):
    assert gpu.network_bandwidth < gpu.link_bandwidth
    # All of NVIDIA's tensor cores multiply TF32 at half the speed of bfloat16.
    assert peak_of(gpu, "f32") == gpu.peak_flops / 2
    assert peak_of(gpu, "bf16") == gpu.peak_flops
    # The cores alone, without tensor cores, are slower. Each unit does a multiplication and an addition.
    assert 2 * gpu.cores * gpu.float32_units * gpu.clock < gpu.tf32_flops


def test_a_tpu_multiplies_float32_at_the_speed_of_bfloat16():
    v3 = CHIPS["v3"]
    assert peak_of(v3, "f32") == peak_of(v3, "bf16") == v3.peak_flops


def test_the_compiler_gets_the_figures_of_the_gpu():
    lines = {line.strip() for line in CHIPS["a100"].description.splitlines()}
    assert {"core_count: 108", "memory_bandwidth: 2039040000000", "major: 8", "minor: 0"} <= lines
    assert 'device_description_str: "a100"' in lines


def test_slices_reach_each_other_by_the_network_of_the_documentation():
    """A pod of 256 chips has 6.4 Tbit/s (v5e) or 25.6 Tbit/s (v6e)."""
    assert {name: 8 * rate for name, rate in SLICE_BANDWIDTH.items()} == {
        "v5e": 6.4e12 / 256,
        "v5p": 50e9,
        "v6e": 25.6e12 / 256,
    }
