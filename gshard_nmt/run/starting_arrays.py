"""Makes the arrays that a run starts with from those of another run, on the devices of the mesh.

Both runs' arrays are split over the mesh, so no device and no host holds a whole weight, unless its
letters say so. An array that is taken over as it is needs no program. One program makes all others.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gshard_nmt.data.text.vocabulary_match import RowMatch
from gshard_nmt.model.inheritance import Origin, Origins
from gshard_nmt.spmd.lowering import ArraySpecs
from gshard_nmt.spmd.runtime import Runtime

GROUP_NOISE = 1.0
"""The size of the noise of a gate whose experts were copied, in units of a new gate."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What the arrays of a new run begin with, by their names in the state, such as `moments/row/NAME`.

    Arrays that `origins` does not name keep their initial values. `rows` has the rows that each weight
    with a row for each piece, and each array of its moments, takes over.
    """

    origins: Mapping[str, Origins]
    old_specs: ArraySpecs
    new_specs: ArraySpecs
    rows: Mapping[str, RowMatch]


def placed(devices: Runtime, specs: ArraySpecs) -> dict[str, Any]:
    """Returns the shapes, dtypes and shardings to read the arrays of another run with.

    A dimension that does not divide over the mesh is not split.
    """
    shapes = {}
    for name, spec in specs.items():
        uneven = {d.letter for d in devices.mesh.uneven(spec.letters, spec.shape, name)}
        letters = "".join("_" if letter in uneven else letter for letter in spec.letters)
        key = "" if uneven else name  # an override by name would split it all the same
        shapes[name] = devices.abstract({key: dataclasses.replace(spec, letters=letters)})[key]
    return shapes


def assemble(
    devices: Runtime, recipe: Recipe, old: Mapping[str, Any], initial: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arrays of the new run by name."""
    import jax

    arrays, changed = dict(initial), []
    shardings = {name: devices.sharding(recipe.new_specs[name], name) for name in recipe.origins}
    for name, entries in recipe.origins.items():
        if is_whole(name, entries, recipe):
            assert entries[0] is not None
            arrays[name] = jax.device_put(old[entries[0].name], shardings[name])
        elif any(entries):
            changed.append(name)
    if not changed:
        return arrays
    needed = {o.name for name in changed for o in recipe.origins[name] if o}

    def build(old: Mapping[str, Any], initial: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _built(name, recipe, old, initial[name]) for name in changed}

    shardings = {name: shardings[name] for name in changed}
    inputs = {n: old[n] for n in needed}, {n: initial[n] for n in changed}
    return arrays | jax.jit(build, out_shardings=shardings)(*inputs)


def is_whole(name: str, entries: Origins, recipe: Recipe) -> bool:
    """Returns whether an array is an old array as it is, in the same place."""
    if not entries or entries[0] is None:
        return False
    source = recipe.old_specs[entries[0].name]
    repeats = [None] if entries[0].repeat is None else list(range(len(entries)))
    wanted = [Origin(entries[0].name, repeat) for repeat in repeats]
    return list(entries) == wanted and source == recipe.new_specs[name]


def _built(name: str, recipe: Recipe, old: Mapping[str, Any], initial: Any) -> Any:
    """Returns an array of the new run, from old arrays and its own initial values."""
    import jax.numpy as jnp

    letters, entries = recipe.new_specs[name].letters, recipe.origins[name]
    if not letters.startswith("R"):
        (origin,) = entries
        assert origin is not None
        return _fitted(old[origin.name], origin, letters, initial, recipe, name)
    return jnp.stack(
        [
            initial[repeat]
            if origin is None
            else _fitted(
                old[origin.name][origin.repeat], origin, letters[1:], initial[repeat], recipe, name
            )
            for repeat, origin in enumerate(entries)
        ]
    )


def _fitted(
    values: Any, origin: Origin, letters: str, initial: Any, recipe: Recipe, name: str
) -> Any:
    """Returns the values of a weight, or of one repeat, in the shape of `initial`."""
    import jax.numpy as jnp

    if origin.silent:
        return jnp.zeros_like(initial)
    if origin.upcycled:
        return jnp.broadcast_to(values, initial.shape)  # the dimension E is the first
    if origin.resized not in letters or not origin.resized:
        return values
    if origin.resized == "V":
        return _rows(values, recipe.rows[name], initial)
    axis = letters.index(origin.resized)
    number = values.shape[axis]
    if origin.resized == "L":
        return jnp.concatenate([values[: len(initial)], initial[number:]])
    places = np.arange(initial.shape[axis])
    resized = jnp.take(values, places % number, axis=axis)
    if name.startswith("parameters/") and origin.resized == "_" and len(places) > number:
        # All copies with the same number form a group, and share one random column. So a token chooses a
        # group, and in it the experts that it chose before, unless its first gate was far ahead of its
        # second. With equal columns, or with noise for each column, its two experts would be two copies
        # of the same one.
        resized += GROUP_NOISE * jnp.take(initial, places // number, axis=axis)
    return resized


def _rows(values: Any, match: RowMatch, initial: Any) -> Any:
    """Returns the rows of an embedding or the output bias, or their moments: [V] or [V, M]."""
    import jax
    import jax.numpy as jnp

    counts = np.array([len(ids) for ids in match.sources])
    first = np.array([ids[0] if ids else 0 for ids in match.sources])
    has_source = (counts > 0).reshape(-1, *[1] * (values.ndim - 1))
    rows = jnp.where(has_source, values[first], initial)
    (means,) = np.nonzero(counts > 1)
    if not means.size:
        return rows
    flat = np.concatenate([match.sources[i] for i in means.tolist()])
    segments = np.repeat(np.arange(means.size), counts[means])
    sums = jax.ops.segment_sum(values[flat], segments, means.size)
    return rows.at[means].set(sums / counts[means].reshape(-1, *[1] * (values.ndim - 1)))
