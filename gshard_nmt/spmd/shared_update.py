"""Divides the update of replicated weights among the devices that hold them.

Every device that holds a weight would compute the same update of it. With weight-update sharding (Xu et
al. 2020, arXiv 2004.13336; ZeRO, GSPMD section 5.1) each of them gets a part of the gradient, updates
this part of the weight, and sends it to the others. The weights themselves stay replicated, so forward
and backward pass do not change.

    without   all-reduce of the gradient,     update of the whole weight on every device
    with      reduce-scatter of the gradient, update of a part, all-gather of the new parts

An all-reduce sends as many bytes as a reduce-scatter and an all-gather together.
"""

import functools
from collections.abc import Iterator, Sequence

from gshard_nmt.spmd.mesh import Mesh, Partition

Axes = tuple[tuple[str, int], ...]
"""The axes of a mesh: (name, size)."""


@functools.lru_cache(maxsize=4096)
def divided(
    axes: Axes, letters: str, sizes: tuple[int, ...], own: Partition
) -> tuple[Axes, Partition]:
    """Returns a partition that also splits an array over devices that hold copies of it.

    Only one more dimension is split, over as many devices as it has large enough parts for. The others
    still hold copies. (A second dimension would make the parts smaller, but XLA's reduce-scatter splits
    only one dimension. 128 parts are as good as 2,048: either makes the update nearly free.) Each mesh
    axis that splits nothing is divided into axes of prime size, so that a dimension can take some of
    them.

    >>> divided((("x", 8),), "MH", (32, 256), ((), ()))
    ((('x.0', 2), ('x.1', 2), ('x.2', 2)), (('x.1', 'x.2'), ()))

    Args:
      letters: the letters of the array. R is not split, because a loop takes one repeat at a time.
      own: the mesh axes that split the array already.

    Returns:
      The finer axes, and those that split each dimension. A vector is small, so it is not split further.
    """
    used = [axis for names in own for axis in names]
    free = {
        name: [(f"{name}.{i}", prime) for i, prime in enumerate(_primes(size))]
        for name, size in axes
        if name not in used
    }
    fine = tuple(part for name, size in axes for part in free.get(name, [(name, size)]))
    dims = [dim for dim, letter in enumerate(letters) if letter != "R"]
    if len(dims) < 2:
        return fine, own
    # A TPU stores the last two dimensions of an array in tiles of 8 x 128 elements.
    units = dict.fromkeys(dims, 1) | {dims[-2]: 8, dims[-1]: 128}
    best: tuple[int, int, list[str]] = (1, dims[0], [])
    for dim in dims:
        if own[dim]:
            continue
        parts = 1
        names: list[str] = []
        # The last axes come first, because they join neighbors, such as the cores of a chip.
        for name, prime in reversed([axis for fine_axes in free.values() for axis in fine_axes]):
            if sizes[dim] % (parts * prime * units[dim]) == 0:
                parts, names = parts * prime, [name, *names]
        best = max(best, (parts, dim, names), key=lambda choice: choice[0])
    _, dim, names = best
    return fine, tuple(tuple(names) if d == dim and names else kept for d, kept in enumerate(own))


def fine_mesh(mesh: Mesh, letters: str, sizes: Sequence[int], name: str) -> tuple[Mesh, Partition]:
    """Returns the mesh with finer axes, and the partition of a weight's update over them."""
    axes = tuple(mesh.sizes.items())
    fine, partition = divided(axes, letters, tuple(sizes), mesh.partition(letters, name))
    names, shape = zip(*fine, strict=True) if fine else ((), ())
    order = tuple(mesh.devices().ravel().tolist()) if mesh.device_order else ()
    return Mesh(names, shape, rules={}, device_order=order), partition


def _primes(number: int) -> Iterator[int]:
    """Yields the prime factors of a number, smallest first; 1 has none."""
    factor = 2
    while number > 1:
        while number % factor == 0:
            yield factor
            number //= factor
        factor += 1
