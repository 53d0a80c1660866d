"""Checksums of arrays, computed on the devices that hold them, or on the host if they are small.

An array has one checksum of 32 bits. If its letters have R (repeats) or E (experts), each expert of
each repeat has a checksum of its own. A checksum is the sum, modulo 2**32, of one word for each
element: a hash of its bits and its index within the expert. A sum does not depend on the order of its
terms, so it is the same on every mesh. A change of one element always changes the checksum.

The same pass counts the values that are not finite. A program reads each array once, moves no weight to
another device, and returns a few numbers.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_INDEX_FACTOR, _INDEX_OFFSET = 0x9E3779B1, 0x7F4A7C15
_MIX = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
"""The shifts and factors of the finalizer of MurmurHash3. It maps words of 32 bits one to one."""

_BLOCK = 2**20

_HOST_BYTES = 64 << 20
"""Up to this size, the host computes the checksums of arrays in a tenth of a second. A program is not
much faster, and takes 0.7 s to trace and another 2 s to compile."""


class NotFiniteError(ValueError):
    """Arrays have values that are not finite."""


@dataclasses.dataclass(frozen=True)
class Checksums:
    """The checksums of one array, uint32[R, E] without the dimensions that it does not have.

    `not_finite` counts the values that are infinite or not a number, exact below 2**24.
    """

    sums: np.ndarray
    not_finite: int


def sliced_dimensions(letters: str) -> tuple[int, ...]:
    """Returns the dimensions, of repeats and experts, whose slices have checksums of their own."""
    return tuple(i for i, letter in enumerate(letters) if letter in "RE")


def slice_name(letters: str, index: Sequence[int]) -> str:
    """Returns the name of a slice with its own checksum, such as "repeat 0, expert 3"."""
    words = {"R": "repeat", "E": "expert"}
    names = [words[letters[d]] for d in sliced_dimensions(letters)]
    return ", ".join(f"{name} {i}" for name, i in zip(names, index, strict=True))


def on_devices(arrays: Mapping[str, Any], letters: Mapping[str, str]) -> dict[str, Checksums]:
    """Computes checksums as `compute_checksums` does, with one program, compiled at the first call."""
    import jax

    placed = {
        name: jax.numpy.asarray(array) if isinstance(array, np.ndarray) else array
        for name, array in arrays.items()
    }
    sums, not_finite = jax.device_get(program(placed, letters)(placed))
    checksums, start = {}, 0
    for name, count in zip(sorted(arrays), not_finite, strict=True):
        shape = tuple(arrays[name].shape[d] for d in sliced_dimensions(letters.get(name, "")))
        stop = start + math.prod(shape)
        checksums[name] = Checksums(sums[start:stop].reshape(shape), int(count))
        start = stop
    return checksums


def compute_checksums(
    arrays: Mapping[str, Any], letters: Mapping[str, str]
) -> dict[str, Checksums]:
    """Computes the checksums of arrays, on the host if they are small, or else with one program.

    All processes that hold a part of the arrays must call it together. Elements have 32 bits or fewer. An
    array without letters has one checksum.
    """
    if _suits_the_host(arrays):
        return {
            name: on_host(np.asarray(array), letters.get(name, ""))
            for name, array in arrays.items()
        }
    return on_devices(arrays, letters)


def prepare_checksums(arrays: Mapping[str, Any], letters: Mapping[str, str]) -> None:
    """Compiles the program for arrays like these, if `compute_checksums` needs it for them."""
    if not _suits_the_host(arrays):
        program(arrays, letters)


def _suits_the_host(arrays: Mapping[str, Any]) -> bool:
    """Returns whether arrays are small, and all of each is in the memory of this host."""
    size = sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays.values())
    if size > _HOST_BYTES:
        return False
    shardings = [array.sharding for array in arrays.values() if hasattr(array, "sharding")]
    return all(
        sharding.is_fully_addressable and next(iter(sharding.device_set)).platform == "cpu"
        for sharding in shardings
    )


def program(arrays: Mapping[str, Any], letters: Mapping[str, str]) -> Any:
    """Returns the program for arrays like these (or their shapes, dtypes, shardings), compiled once."""
    return _compiled(
        tuple(
            (name, letters.get(name, ""), array.shape, array.dtype, array.sharding)
            for name, array in sorted(arrays.items())
        )
    )


@functools.lru_cache(maxsize=4)
def _compiled(table: tuple[tuple[str, str, Any, Any, Any], ...]) -> Any:
    import jax
    import jax.numpy as jnp

    # Equal arrays are traced and lowered once, because the function of one array is jitted too.
    single = jax.jit(_sums_and_count, static_argnums=1)

    def checksums(arrays: Mapping[str, Any]) -> tuple[Any, Any]:
        results = [single(arrays[name], letters) for name, letters, *_ in table]
        sums = [sums.reshape(-1) for sums, _ in results]
        return jnp.concatenate(sums), jnp.stack([count for _, count in results])

    arguments = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
        for name, _, shape, dtype, sharding in table
    }
    meshes = [sharding.mesh for *_, sharding in table if hasattr(sharding, "mesh")]
    # Every process reads the results.
    whole = None
    if meshes:
        whole = jax.sharding.NamedSharding(meshes[0], jax.sharding.PartitionSpec())
    return jax.jit(checksums, out_shardings=whole).lower(arguments).compile()


def _sums_and_count(array: Any, letters: str) -> tuple[Any, Any]:
    """Returns uint32[R, E] sums and the float32[] count of values that are not finite."""
    import jax
    import jax.numpy as jnp

    word = jnp.uint32
    bits = jax.lax.bitcast_convert_type(array, _word_dtype(array.dtype)).astype(word)
    summed = [d for d in range(array.ndim) if d not in sliced_dimensions(letters)]
    index, stride = jnp.zeros((), word), 1
    for d in reversed(summed):
        iota = jax.lax.broadcasted_iota(word, array.shape, d)
        index, stride = index + iota * word(stride % 2**32), stride * array.shape[d]
    mixed = _mixed(bits, index, word)
    # A count in int32 could wrap to 0: a weight of a large model has more than 2**32 elements.
    count = jnp.zeros((), jnp.float32)
    if jnp.issubdtype(array.dtype, jnp.floating):
        count = jnp.sum(~jnp.isfinite(array), dtype=jnp.float32)
    return jnp.sum(mixed, axis=tuple(summed), dtype=word), count


def on_host(array: np.ndarray, letters: str = "") -> Checksums:
    """Computes the checksums of a NumPy array. They are equal to the results of `on_devices`."""
    sliced = sliced_dimensions(letters)
    shape = tuple(array.shape[d] for d in sliced)
    # E.g. REMH -> [R * E, M * H]
    rows = np.moveaxis(array, sliced, range(len(sliced))).reshape(math.prod(shape), -1)
    not_finite = 0
    if rows.dtype.kind not in "iub":
        not_finite = int((~np.isfinite(rows)).sum())
    count, size = rows.shape
    sums = np.zeros(count, np.uint64)
    together = max(1, _BLOCK // max(1, size))
    for row in range(0, count, together):
        for start in range(0, size, _BLOCK):
            block = np.ascontiguousarray(rows[row : row + together, start : start + _BLOCK])
            bits = block.view(_word_dtype(block.dtype)).astype(np.uint32)
            index = np.arange(start, start + block.shape[1], dtype=np.uint64).astype(np.uint32)
            mixed = _mixed(bits, index, np.uint32)
            sums[row : row + together] += mixed.sum(axis=1, dtype=np.uint64)
    return Checksums(sums.astype(np.uint32).reshape(shape), not_finite)


def _mixed(bits: Any, index: Any, word: Any) -> Any:
    """Returns a hash of the bits and the index of each element, uint32 each."""
    mixed = bits ^ (index * word(_INDEX_FACTOR) + word(_INDEX_OFFSET))
    for shift, factor in _MIX:
        mixed = (mixed ^ (mixed >> word(shift))) * word(factor)
    return mixed ^ (mixed >> word(16))


def _word_dtype(dtype: Any) -> Any:
    words = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    size = np.dtype(dtype).itemsize
    if size not in words:
        raise TypeError(f"the dtype is {dtype}; checksums need elements of 8, 16 or 32 bits")
    return words[size]
