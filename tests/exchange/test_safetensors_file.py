"""Files of tensors: each dtype, several files with an index, and damage."""

import json
import struct

import numpy as np
import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.exchange import safetensors_file
from gshard_nmt.exchange.safetensors_file import INDEX, SINGLE, Tensors


def write(file, tensors):
    """Writes tensors of (dtype, shape, bytes) by name."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


VALUES = np.array([[1.5, -2.0, 0.25]], np.float32)


@pytest.mark.parametrize(
    ("dtype", "content"),
    [
        ("F32", VALUES.tobytes()),
        ("F64", VALUES.astype("<f8").tobytes()),
        ("F16", VALUES.astype("<f2").tobytes()),
        ("BF16", (VALUES.view(np.uint32) >> 16).astype("<u2").tobytes()),
    ],
)
def test_every_dtype_is_read_as_float32(tmp_path, dtype, content):
    # The one byte before it moves the tensor to an odd address.
    write(tmp_path / SINGLE, {"w": ("F16", [0], b""), "a": (dtype, [1, 3], content)})
    tensors = Tensors(tmp_path)
    values = tensors.read("a", (1, 3))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, VALUES)
    assert tensors.unread == {"w"}


def test_an_index_names_several_files(tmp_path):
    for name, value in (("one", 1.0), ("two", 2.0)):
        write(tmp_path / f"{name}.safetensors", {name: ("F32", [1], struct.pack("<f", value))})
    names = {"one": "one.safetensors", "two": "../two.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    tensors = Tensors(tmp_path)
    assert [tensors.read(name, (1,)).tolist() for name in names] == [[1.0], [2.0]]
    assert "three" not in tensors
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(UserError, match=r"two\.safetensors is missing, but the index names it"):
        Tensors(tmp_path)


def test_a_single_file_comes_before_an_index(tmp_path):
    write(tmp_path / SINGLE, {"a": ("F32", [3], VALUES.tobytes())})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    np.testing.assert_array_equal(Tensors(tmp_path).read("a", (3,)), VALUES[0])


@pytest.mark.parametrize("name", ["a", "bb", "ccc", "dddd", "eeeee"])
def test_a_file_that_is_written_can_be_mapped(tmp_path, name):
    """transformers asks for the format; readers that map a file expect tensors at a multiple of 8."""
    arrays = {name: VALUES.astype(np.float64), "last": np.arange(4, dtype=np.float16)}
    safetensors_file.write(tmp_path / SINGLE, arrays)
    content = (tmp_path / SINGLE).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    assert header["__metadata__"] == {"format": "pt"}
    assert header["last"] == {"dtype": "F32", "shape": [4], "data_offsets": [12, 28]}
    assert len(content) == 8 + length + 28
    tensors = Tensors(tmp_path)
    for tensor, values in arrays.items():
        np.testing.assert_array_equal(tensors.read(tensor, values.shape), values)


def test_a_missing_tensor_and_a_wrong_shape_are_named(tmp_path):
    write(tmp_path / SINGLE, {"a": ("F32", [3], VALUES.tobytes())})
    tensors = Tensors(tmp_path)
    with pytest.raises(UserError, match="has no tensor b, so it is not the whole model"):
        tensors.read("b", (3,))
    with pytest.raises(UserError, match=r"has the shape \[3\], but by config.json .* \[1, 3\]"):
        tensors.read("a", (1, 3))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is not a safetensors file"),
        (b"\xff" * 20, "it is not a safetensors file"),
        (struct.pack("<Q", 0) + b"{}", "it is not a safetensors file"),
        (struct.pack("<Q", 3) + b"{}", "it is not a safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "is damaged"),
        (struct.pack("<Q", 8) + b'{"a": 1}', "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, message):
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(UserError, match=message):
        Tensors(tmp_path)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (("F32", [4], VALUES.tobytes()), "the file is cut"),
        (("I8", [12], VALUES.tobytes()), "the dtype I8 is none of F64, F32, F16, BF16"),
    ],
)
def test_a_tensor_that_cannot_be_read_is_refused(tmp_path, tensor, message):
    write(tmp_path / SINGLE, {"a": tensor})
    with pytest.raises(UserError, match=message):
        Tensors(tmp_path)


def test_a_file_whose_end_is_missing_is_refused(tmp_path):
    write(tmp_path / SINGLE, {"a": ("F32", [3], VALUES.tobytes())})
    content = (tmp_path / SINGLE).read_bytes()
    (tmp_path / SINGLE).write_bytes(content[:-4])
    with pytest.raises(UserError, match="the file is cut"):
        Tensors(tmp_path)


def test_a_header_that_is_too_long_is_not_parsed(tmp_path, monkeypatch):
    write(tmp_path / SINGLE, {"a": ("F32", [3], VALUES.tobytes())})
    monkeypatch.setattr(safetensors_file, "_LARGEST_HEADER", 9)
    with pytest.raises(UserError, match="it is not a safetensors file"):
        Tensors(tmp_path)


def test_pickled_weights_are_not_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UserError, match="files of weights are not read"):
        Tensors(tmp_path)
