"""Tensors of a Hugging Face folder: model.safetensors, or several files with an index.

A file begins with the length of its header, 8 bytes, little-endian. The header is JSON: dtype, shape, and
first and last byte of each tensor. The bytes of all tensors follow. Nothing in it is code.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import json_shape
from gshard_nmt.errors import UserError
from gshard_nmt.json_shape import anything, fields, list_of, mapping_of, text, whole

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_BFLOAT16 = np.dtype("<u2")
"""NumPy has no bfloat16. We read its two bytes, which are the upper half of a float32."""
_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": _BFLOAT16,
}
_INDEX = fields({"weight_map": mapping_of(text())})
_TENSOR = fields(
    {"dtype": text(), "shape": list_of(whole()), "data_offsets": list_of(whole(), least=2)}
)
_HEADER = mapping_of(anything())
_LARGEST_HEADER = 100 << 20
_REMEDY = "Copy the file again from where it was made."


def write(file: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a file of float32 tensors.

    Args:
      file: the file to make.
      tensors: the tensors by name, of any float dtype.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + 4 * tensor.size
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    # The tensors begin at a multiple of 8 bytes, which readers that map the file expect.
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            stream.write(np.ascontiguousarray(tensor, "<f4").tobytes())


class Tensors:
    """The tensors of a folder by name. The files are mapped into memory, and read when needed."""

    def __init__(self, folder: Path) -> None:
        """Reads the headers of all files.

        Raises:
          UserError: there is no file of tensors, or one is damaged.
        """
        self._folder = folder
        self._arrays: dict[str, np.ndarray] = {}
        for name in self._files():
            self._arrays |= _map(folder / name)
        self.unread = set(self._arrays)
        """The names of the tensors that have not been read."""

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a tensor as float32.

        Args:
          name: its name.
          shape: the shape that it must have.

        Raises:
          UserError: the tensor is missing or has another shape.
        """
        array = self._arrays.get(name)
        if array is None:
            raise UserError(
                f"--from {self._folder} has no tensor {name}, so it is not the whole model that its "
                "config.json describes. Copy the folder again, with all its files."
            )
        if array.shape != shape:
            raise UserError(
                f"--from {self._folder}: the tensor {name} has the shape {list(array.shape)}, but by "
                f"config.json it must have {list(shape)}. Take both files from the same model."
            )
        self.unread.discard(name)
        if array.dtype == _BFLOAT16:
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32)

    def _files(self) -> list[str]:
        if (self._folder / SINGLE).is_file():
            return [SINGLE]
        index = self._folder / INDEX
        if index.is_file():
            files = json_shape.read(index, _INDEX, _REMEDY)["weight_map"].values()
            # Only files of the folder itself: the index may come from somebody else.
            return sorted({Path(name).name for name in files})
        raise UserError(
            f"--from {self._folder} has neither {SINGLE} nor {INDEX}; other files of weights are not "
            "read, because pickled ones can run code. Load the model with transformers, and write it "
            "with save_pretrained."
        )


def _map(file: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a file by name, mapped into memory."""
    if not file.is_file():
        raise UserError(f"{file} is missing, but the index names it. {_REMEDY}")
    content = np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)
    length = int.from_bytes(content[:8].tobytes(), "little")
    if len(content) < 8 or not 0 < length <= min(_LARGEST_HEADER, len(content) - 8):
        raise UserError(f"{file} is damaged: it is not a safetensors file. {_REMEDY}")
    try:
        header = json_shape.parse(content[8 : 8 + length].tobytes(), _HEADER)
        header.pop("__metadata__", None)
        data = content[8 + length :]
        return {name: _tensor(data, entry) for name, entry in header.items()}
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error}. {_REMEDY}") from None


def _tensor(data: np.ndarray, entry: Any) -> np.ndarray:
    """Returns one tensor of the bytes after the header; raises ValueError if its entry is wrong."""
    if problem := json_shape.problem(_TENSOR, entry):
        raise ValueError(problem)
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"the dtype {entry['dtype']} is none of {', '.join(_DTYPES)}")
    dtype = _DTYPES[entry["dtype"]]
    start, end = entry["data_offsets"][:2]
    if end > len(data) or end - start != math.prod(entry["shape"]) * dtype.itemsize:
        raise ValueError("a tensor does not have the bytes of its shape; the file is cut")
    # A view of the file, which need not be aligned: the copy to float32 reads it.
    return data[start:end].view(dtype).reshape(entry["shape"])
