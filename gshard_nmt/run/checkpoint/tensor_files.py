"""The files of a checkpoint's arrays, through orbax: written in the background, read by shards.

Orbax spends more than a millisecond on each array, however small, and most arrays of a model are
small. So small arrays that every device holds are packed into one array of words. Nothing is
compressed: trained weights are nearly random, and compression only takes time.
"""

import concurrent.futures
import functools
import math
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import paths
from gshard_nmt.reading import AWAY, DENIED, UnreadableError, UnsoundError

COMMIT_FILE = "commit_success.txt"
"""Orbax writes this file into the folder of a checkpoint when everything else is there."""


SAVE_HOURS = 24
"""The longest time that a save may take. A lost process or a dead one is noticed long before."""


def new_writer(before_commit: Callable[[], None], processes: int) -> Any:
    """Returns an orbax checkpointer that writes in the background.

    Process 0 calls `before_commit` when the arrays of all processes are on the disk.
    """
    ocp = orbax()
    _silence_dropped_writes()
    import jax
    from orbax.checkpoint import options

    # Several processes each write a part of an array that all of them hold. In one process this is no
    # gain, and orbax would compile a program for each shape to cut out the parts.
    handlers = ocp.type_handlers
    arrays = handlers.ArrayHandler(use_replica_parallel=processes > 1)
    registry = handlers.create_type_handler_registry(
        (jax.Array, arrays), (np.ndarray, handlers.NumpyHandler())
    )
    return ocp.AsyncCheckpointer(
        ocp.PyTreeCheckpointHandler(use_compression=False, type_handler_registry=registry),
        async_options=options.AsyncOptions(
            timeout_secs=SAVE_HOURS * 3600, post_finalization_callback=before_commit
        ),
        atomicity_options=options.AtomicityOptions(mode=options.AtomicityMode.COMMIT_FILE),
    )


Places = Mapping[tuple[str, str], int]
"""The first word of each packed array in the array of words, by its group and name."""


def pack(groups: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], Places]:
    """Packs small arrays into `packed/words` uint32[n]. Returns the arrays to write, and their places."""
    import jax

    small: dict[tuple[str, str], Any] = {}
    tree: dict[str, dict[str, Any]] = {}
    for group, arrays in groups.items():
        for name, array in arrays.items():
            is_whole = getattr(array, "is_fully_replicated", True)
            if array.nbytes <= _SMALL_BYTES and array.dtype.itemsize == 4 and is_whole:
                small[group, name] = array
            else:
                tree.setdefault(group, {})[name] = array
    places, place = {}, 0
    for key, array in small.items():
        places[key] = place
        place += array.size
    if small:
        # Every process has all values of these arrays, so this moves no array between processes.
        copies = jax.device_get(list(small.values()))
        words = [np.ascontiguousarray(copy).reshape(-1).view(np.uint32) for copy in copies]
        tree[_PACKED] = {_WORDS: np.concatenate(words)}
    return tree, places


_SMALL_BYTES = 2**16
_PACKED, _WORDS = "packed", "words"


@functools.cache
def _silence_dropped_writes() -> None:
    """Keeps Python from printing a traceback for each array that orbax drops after its first error.

    Orbax raises the error that counts. Python would print the others when it collects their coroutines.
    """
    print_ignored = sys.unraisablehook

    def hook(ignored: "sys.UnraisableHookArgs") -> None:
        frames = (frame for frame, _ in traceback.walk_tb(ignored.exc_traceback))
        modules = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
        if issubclass(ignored.exc_type, KeyboardInterrupt) or not modules & {"orbax", "asyncio"}:
            print_ignored(ignored)

    sys.unraisablehook = hook


def load(
    folder: Path, wanted: Mapping[str, Mapping[str, Any]], places: Places
) -> dict[str, dict[str, Any]]:
    """Reads arrays of a checkpoint and places them on the devices of this process.

    It reads through tensorstore, because orbax prints a traceback for each array that it was still
    reading when the first one failed. No process waits for another one. `wanted` has the shape, dtype and
    sharding of each array, and `places` is of `pack`. See `problem_of` for the errors.
    """
    import jax

    specs = {(group, name): spec for group, table in wanted.items() for name, spec in table.items()}
    words = _read_words(folder) if any(key in places for key in specs) else np.empty(0, np.uint32)

    def read(key: tuple[str, str]) -> Any:
        spec = specs[key]
        if key in places:
            whole = _unpacked(words, places[key], spec)
            return jax.make_array_from_callback(spec.shape, spec.sharding, whole.__getitem__)
        store = _open(folder, *key).result()
        _check_same("/".join(key), store, spec)
        indices = spec.sharding.addressable_devices_indices_map(spec.shape).values()
        shards = {_shard(index): store[index].read() for index in indices}
        return jax.make_array_from_callback(
            spec.shape, spec.sharding, lambda index: shards[_shard(index)].result()
        )

    arrays: dict[str, dict[str, Any]] = {group: {} for group in wanted}
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        for (group, name), array in zip(specs, pool.map(read, specs), strict=True):
            arrays[group][name] = array
    return arrays


def load_to_host(folder: Path, group: str, name: str, tensor: Any) -> Any:
    """Reads one array to the host, as `load` does. `tensor` has its shape and dtype, and its place.

    The place is None if the array is not packed.
    """
    if tensor.place is not None:
        return _unpacked(_read_words(folder), tensor.place, tensor)
    store = _open(folder, group, name).result()
    _check_same(f"{group}/{name}", store, tensor)
    return store.read().result()


def _read_words(folder: Path) -> np.ndarray:
    return _open(folder, _PACKED, _WORDS).result().read().result()


def _unpacked(words: np.ndarray, place: int, spec: Any) -> np.ndarray:
    return words[place : place + math.prod(spec.shape)].view(spec.dtype).reshape(spec.shape)


_AT_ONCE = 4
"""The number of arrays that are read at the same time. Until all shards of an array are on their devices,
the host has a copy of them."""


def _open(folder: Path, group: str, name: str) -> Any:
    """Returns the future of the tensorstore of one array, at the place where orbax writes it."""
    import tensorstore

    path = location(folder)
    base: Any = f"{path}/" if paths.is_url(path) else {"driver": "file", "path": f"{path}/"}
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "ocdbt", "base": base, "path": f"{group}.{name}/"},
        "recheck_cached_data": "open",
        "recheck_cached_metadata": "open",
        "fill_missing_data_reads": False,
    }
    return tensorstore.open(spec, open=True, context=_context())


@functools.cache
def _context() -> Any:
    import tensorstore

    return tensorstore.Context()


def _check_same(name: str, store: Any, spec: Any) -> None:
    stored = store.dtype.name, list(store.shape)
    wanted = np.dtype(spec.dtype).name, list(spec.shape)
    if stored != wanted:
        raise UnsoundError(f"{name} is {stored[0]}{stored[1]}, not {wanted[0]}{wanted[1]}")


def _shard(index: tuple[slice, ...]) -> tuple[tuple[Any, Any], ...]:
    return tuple((part.start, part.stop) for part in index)


_DAMAGE = ("DATA_LOSS", "FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE")
"""Tensorstore reports bad checksums, cut files, bad contents and missing files with these codes."""
_STATUS = re.compile(r"([A-Z_]+): ")
_CAUSE = re.compile(r"(?:os_error_code|http_response_code)=\W*(\d+)")
_CAUSES_OF_DAMAGE = ("2", "404", "416")
"""ENOENT; and the answers of a bucket if an object is missing or too short."""


_CODES_OF_DENIAL = ("PERMISSION_DENIED", "UNAUTHENTICATED")


def is_away(error: Exception) -> bool:
    """Returns whether an error of a save may pass by itself. Tensorstore's have no errno."""
    text = str(error)
    numbers = {getattr(error, "errno", None), *map(int, _CAUSE.findall(text))}
    return not numbers.isdisjoint(AWAY) or text.startswith(("UNAVAILABLE", "DEADLINE_EXCEEDED"))


def problem_of(error: Exception) -> UnsoundError:
    """Returns what an error of `load` means: UnsoundError if it proves damage, else UnreadableError.

    An error that is not known proves nothing: a disk, a file server, a network or a limit of the system
    may be the cause, and the files may be sound.
    """
    text = str(error)
    line = text.strip().partition("\n")[0].partition(" [")[0]
    if len(line) > 300:  # the cause stands at its end
        line = f"{line[:100]} ... {line[-195:]}"
    message = f"its arrays cannot be read: {line}"
    code = match[1] if (match := _STATUS.match(text)) else ""
    causes = _CAUSE.findall(text)
    if code:
        is_damage = code in _DAMAGE and all(cause in _CAUSES_OF_DAMAGE for cause in causes)
    else:
        # Tensorstore gives no code to the contents of a file that make no sense.
        is_known = isinstance(error, (FileNotFoundError, UnsoundError))
        is_damage = is_known or ("Error decoding" in text and not causes)
    if is_damage:
        return UnsoundError(message)
    is_denied = isinstance(error, PermissionError) or code in _CODES_OF_DENIAL
    return UnreadableError(message, DENIED if is_denied else "")


def location(folder: Path) -> Any:
    from etils import epath

    return epath.Path(paths.absolute(folder))


@functools.cache
def orbax() -> Any:
    """Returns the module orbax.checkpoint. Importing it is slow.

    Its log is silenced: it prints a traceback for each error that it raises later on.
    """
    import logging

    import orbax.checkpoint as ocp

    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return ocp
