"""Files of tensors: each dtype, several files with an index, and damage."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from gshard_nmt.errors import UserError
from gshard_nmt.exchange.tensors import INDEX, SINGLE, Tensors, write

VALUES = np.array([[1.5, -2.0, 0.25]], np.float32)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.dtype("bfloat16")])
def test_every_dtype_is_read_as_float32(tmp_path, dtype):
    save_file({"a": VALUES.astype(dtype), "w": np.zeros(1, dtype)}, tmp_path / SINGLE)
    tensors = Tensors(tmp_path)
    values = tensors.read("a", (1, 3))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, VALUES)
    assert tensors.unread == {"w"}


def test_an_index_names_several_files_and_a_single_file_comes_before_it(tmp_path):
    for name, value in (("one", 1.0), ("two", 2.0)):
        write(tmp_path / f"{name}.safetensors", {name: np.array([value])})
    names = {"one": "one.safetensors", "two": "../two.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    tensors = Tensors(tmp_path)
    assert [tensors.read(name, (1,)).tolist() for name in names] == [[1.0], [2.0]]
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(UserError, match=r"two\.safetensors is missing, but the index names it"):
        Tensors(tmp_path)
    write(tmp_path / SINGLE, {"a": VALUES})
    assert Tensors(tmp_path).unread == {"a"}


def test_arrays_of_any_layout_are_written_as_float32_of_torch(tmp_path):
    arrays = {
        "a": VALUES.astype(np.float64),
        "transposed": np.arange(6, dtype=np.float16).reshape(2, 3).T,
    }
    write(tmp_path / SINGLE, arrays)
    assert b'"format":"pt"' in (tmp_path / SINGLE).read_bytes()
    tensors = Tensors(tmp_path)
    for name, values in arrays.items():
        np.testing.assert_array_equal(tensors.read(name, values.shape), values)


def test_a_tensor_that_cannot_be_read_is_named(tmp_path):
    save_file({"a": VALUES, "b": VALUES.astype(np.int8)}, tmp_path / SINGLE)
    tensors = Tensors(tmp_path)
    for name, shape, message in (
        ("c", (3,), "has no tensor c, so it is not the whole model"),
        ("a", (3,), r"has the shape \[1, 3\], but by config.json it must have \[3\]"),
        ("b", (1, 3), "the tensor b has the dtype I8; it must be one of F64, F32, F16, BF16"),
    ):
        with pytest.raises(UserError, match=message):
            tensors.read(name, shape)


def damaged(content: bytes) -> list[bytes]:
    header = struct.pack("<Q", 8) + b'{"a": 1}'
    return [
        b"",
        b"\xff" * 20,
        struct.pack("<Q", 0) + b"{}",
        header,
        content[:-4],
        content + b"more",
    ]


@pytest.mark.parametrize("case", range(6))
def test_a_damaged_file_is_refused_and_named(tmp_path, case):
    write(tmp_path / SINGLE, {"a": VALUES})
    (tmp_path / SINGLE).write_bytes(damaged((tmp_path / SINGLE).read_bytes())[case])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged: .* Copy the file again"):
        Tensors(tmp_path)


def test_pickled_weights_are_not_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="files of weights are not read"):
        Tensors(tmp_path)
