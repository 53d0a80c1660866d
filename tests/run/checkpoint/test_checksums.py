"""Checksums: the same on the devices and on the host, and different if any bit differs."""

import jax.numpy as jnp
import numpy as np
import pytest

from gshard_nmt.run.checkpoint import checksums
from gshard_nmt.run.checkpoint.checksums import (
    compute_checksums,
    on_devices,
    on_host,
    prepare_checksums,
)

RNG = np.random.default_rng(0)
ARRAYS = {
    "weight": (RNG.standard_normal((3, 5)).astype(np.float32), "MH"),
    "experts": (RNG.standard_normal((2, 4, 3, 5)).astype(np.float32), "REMH"),
    "inner": (RNG.standard_normal((3, 4, 5)).astype(np.float32), "MEH"),
    "step": (np.array(7, np.int32), ""),
    "tokens": (np.arange(6, dtype=np.uint32).reshape(3, 2), "_" * 2),
    "half": (RNG.standard_normal((4, 3)).astype(jnp.bfloat16), "EM"),
    "empty": (np.zeros((0, 3), np.float32), "BM"),
}


def test_devices_and_host_compute_the_same_numbers():
    arrays = {name: jnp.asarray(array) for name, (array, _) in ARRAYS.items()}
    letters = {name: letters for name, (_, letters) in ARRAYS.items()}
    computed = on_devices(arrays, letters)
    assert {name: c.sums.shape for name, c in computed.items()} == {
        "weight": (),
        "experts": (2, 4),
        "inner": (4,),
        "step": (),
        "tokens": (),
        "half": (4,),
        "empty": (),
    }
    for name, (array, spelled) in ARRAYS.items():
        expected = on_host(array, spelled)
        np.testing.assert_array_equal(computed[name].sums, expected.sums, err_msg=name)
        assert computed[name].not_finite == expected.not_finite == 0


def test_the_host_computes_the_checksums_of_small_arrays_without_a_program(monkeypatch):
    arrays = {name: jnp.asarray(array) for name, (array, _) in ARRAYS.items()}
    letters = {name: letters for name, (_, letters) in ARRAYS.items()}
    expected = on_devices(arrays, letters)
    size = sum(array.nbytes for array in arrays.values())
    program, programs = checksums.program, []
    monkeypatch.setattr(
        checksums, "program", lambda *arguments: programs.append(1) or program(*arguments)
    )
    for limit, count in ((size, 0), (size - 1, 1)):
        monkeypatch.setattr(checksums, "_HOST_BYTES", limit)
        prepare_checksums(arrays, letters)
        assert len(programs) == count
        computed = compute_checksums(arrays, letters)
        assert len(programs) == 2 * count
        for name in arrays:
            np.testing.assert_array_equal(computed[name].sums, expected[name].sums)
            assert computed[name].not_finite == expected[name].not_finite


def test_the_numbers_do_not_change_with_the_version():
    """Checkpoints on disks hold these numbers, so they are part of the format."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert int(on_host(array).sums) == 0xB573F47F
    assert on_host(array, "EM").sums.tolist() == [0xFFDE4536, 0xEF6E4BF3]


@pytest.mark.parametrize(
    ("shape", "letters"), [((1000,), "M"), ((7, 3, 10), "REM"), ((3, 200), "EM")]
)
def test_arrays_are_read_in_blocks_with_the_same_result(monkeypatch, shape, letters):
    array = RNG.standard_normal(shape).astype(np.float32)
    array.flat[[3, -1]] = np.nan, np.inf
    whole = on_host(array, letters)
    monkeypatch.setattr(checksums, "_BLOCK", 64)
    in_blocks = on_host(array, letters)
    np.testing.assert_array_equal(in_blocks.sums, whole.sums)
    assert in_blocks.not_finite == whole.not_finite == 2
    # Each slice alone has the same checksum.
    for row, expected in zip(array.reshape(whole.sums.size, -1), whole.sums.flat, strict=True):
        assert on_host(row).sums == expected


def test_any_changed_bit_and_any_exchange_changes_the_checksum():
    array = RNG.standard_normal((4, 8)).astype(np.float32)
    expected = int(on_host(array).sums)
    for element in range(array.size):
        for bit in range(0, 32, 5):
            changed = array.copy()
            changed.view(np.uint32).reshape(-1)[element] ^= np.uint32(1 << bit)
            assert int(on_host(changed).sums) != expected
    assert int(on_host(array[::-1]).sums) != expected
    assert int(on_host(array[:, ::-1]).sums) != expected


def test_a_checksum_belongs_to_one_expert():
    array = RNG.standard_normal((2, 4, 3, 5)).astype(np.float32)
    changed = array.copy()
    changed[1, 2, 0, 0] += 1
    different = on_host(array, "REMH").sums != on_host(changed, "REMH").sums
    assert np.argwhere(different).tolist() == [[1, 2]]
    assert checksums.slice_name("REMH", (1, 2)) == "repeat 1, expert 2"
    assert checksums.slice_name("EM", (3,)) == "expert 3"


def test_values_that_are_not_finite_are_counted():
    array = np.array([[1.0, np.nan], [np.inf, -np.inf]], np.float32)
    assert on_host(array).not_finite == 3
    integers = np.array([2**31 - 1], np.int32)
    computed = on_devices({"a": jnp.asarray(array), "i": jnp.asarray(integers)}, {})
    assert (computed["a"].not_finite, computed["i"].not_finite) == (3, 0)
    assert on_devices({"h": jnp.asarray(array, jnp.bfloat16)}, {})["h"].not_finite == 3
