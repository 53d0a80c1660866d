"""Small checkpoints for tests."""

from pathlib import Path

import jax
import numpy as np

from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.manifest import Manifest

LETTERS = {"parameters": {"experts/w": "REMH", "b": "M"}, "optimizer": {}}
NAMES = ("parameters/b", "parameters/experts/w", "optimizer/step")


def state(scale: float) -> dict[str, dict]:
    """A state on one device: a weight of two experts with a file of its own, a vector, a counter."""
    weight = scale * np.arange(1, 385, dtype=np.float32).reshape(1, 2, 16, 12)
    arrays = {
        "parameters": {"experts/w": weight, "b": np.full(3, scale, np.float32)},
        "optimizer": {"step": np.array(scale, np.int32)},
    }
    return jax.tree.map(jax.device_put, arrays)


def abstract(groups: dict[str, dict]) -> dict[str, dict]:
    """The shapes, dtypes and shardings of arrays, to restore them with."""
    return jax.tree.map(
        lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding),
        groups,
    )


def assert_equal(actual: dict[str, dict], expected: dict[str, dict]) -> None:
    """Checks names, dtypes and bits."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for array, wanted in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert array.dtype == wanted.dtype
        assert np.asarray(array).tobytes() == np.asarray(wanted).tobytes()


def make_unreadable(file: Path) -> bytes:
    """Makes a file a link to itself, which also root cannot open, and returns its content."""
    content = file.read_bytes()
    file.unlink()
    file.symlink_to(file)
    return content


def make_readable(file: Path, content: bytes) -> None:
    """Undoes `make_unreadable`."""
    file.unlink()
    file.write_bytes(content)


def files_of(folder: Path) -> list[Path]:
    """Returns the files below a folder, by name."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def whole_state(folder: Path) -> tuple[dict[str, np.ndarray], Manifest]:
    """Returns every array of the newest checkpoint by "group/name", verified, and its manifest."""
    checkpoints = Checkpoints(folder)
    manifest = checkpoints.manifest(checkpoints.steps()[-1])
    return {
        f"{group}/{name}": checkpoints.read(manifest, group, name)
        for group, tensors in manifest.tensors.items()
        for name in tensors
    }, manifest


def flip(folder: Path, step: int) -> None:
    """Changes a bit of the weight of expert 1 in the checkpoint of a step."""
    needle = np.asarray(state(step)["parameters"]["experts/w"])[0, 1, 2, 4:].tobytes()
    (file,) = [
        f for f in (folder / str(step)).rglob("*") if f.is_file() and needle in f.read_bytes()
    ]
    content = bytearray(file.read_bytes())
    content[content.index(needle) + 2] ^= 1
    file.write_bytes(content)
