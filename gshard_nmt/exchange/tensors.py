"""Tensors of a Hugging Face folder: model.safetensors, or several such files with an index."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy then knows bfloat16)
import numpy as np
import safetensors
import safetensors.numpy

from gshard_nmt import json_shape
from gshard_nmt.errors import UserError
from gshard_nmt.json_shape import fields, mapping_of, text

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_DTYPES = ("F64", "F32", "F16", "BF16")
_INDEX = fields({"weight_map": mapping_of(text())})
_REMEDY = "Copy the file again from where it was made."


def write(file: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a file of float32 tensors, which may have any float dtype in memory."""
    # The library writes the memory as it lies.
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}
    safetensors.numpy.save_file(arrays, file, {"format": "pt"})


class Tensors:
    """The tensors of a folder by name. The files are mapped into memory, and read when needed."""

    def __init__(self, folder: Path) -> None:
        """Reads the headers of all files.

        Raises:
          UserError: there is no file of tensors, or one is damaged.
        """
        self._folder = folder
        self._files: dict[str, Any] = {}
        for name in _names(folder):
            with _damage_named(folder / name):
                file = safetensors.safe_open(folder / name, framework="numpy")
                self._files |= dict.fromkeys(file.keys(), file)
        self.unread = set(self._files)
        """The names of the tensors that have not been read."""

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a tensor as float32.

        Args:
          name: its name.
          shape: the shape that it must have.

        Raises:
          UserError: the tensor is missing, or has another shape or no float dtype.
        """
        if name not in self._files:
            raise UserError(
                f"--from {self._folder} has no tensor {name}, so it is not the whole model that its "
                "config.json describes. Copy the folder again, with all its files."
            )
        tensor = self._files[name].get_slice(name)
        found, dtype = tensor.get_shape(), tensor.get_dtype()
        if found != list(shape):
            raise UserError(
                f"--from {self._folder}: the tensor {name} has the shape {found}, but by config.json it "
                f"must have {list(shape)}. Take both files from the same model."
            )
        if dtype not in _DTYPES:
            raise UserError(
                f"--from {self._folder}: the tensor {name} has the dtype {dtype}; it must be one of "
                f"{', '.join(_DTYPES)}. Load the model with transformers, and save it as float32."
            )
        self.unread.discard(name)
        values: np.ndarray = self._files[name].get_tensor(name)
        return values.astype(np.float32)


def _names(folder: Path) -> list[str]:
    """Returns the names of the files of tensors."""
    if (folder / SINGLE).is_file():
        return [SINGLE]
    if not (folder / INDEX).is_file():
        raise UserError(
            f"--from {folder} has neither {SINGLE} nor {INDEX}; other files of weights are not read, "
            "because pickled ones can run code. Load the model with transformers, and write it with "
            "save_pretrained."
        )
    files = json_shape.read(folder / INDEX, _INDEX, _REMEDY)["weight_map"].values()
    # Only files of the folder itself: the index may come from somebody else.
    return sorted({Path(name).name for name in files})


@contextlib.contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    """Turns the errors of the library into a UserError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{file} is missing, but the index names it. {_REMEDY}") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged: {error}. {_REMEDY}") from None
