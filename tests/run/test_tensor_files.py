"""The files of arrays, read by shards."""

import jax
import numpy as np
import pytest

from gshard_nmt.run import tensor_files
from gshard_nmt.run.checkpoint_writer import CheckpointWriter


def split(*axes: str) -> jax.sharding.NamedSharding:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"a/b.c": rng.standard_normal((8, 6)).astype(np.float32), "n": np.array(3, np.int32)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, arrays):
    """A checkpoint whose larger array was written by four devices."""
    writer = CheckpointWriter(tmp_path_factory.mktemp("with space %41"))
    placed = {
        "a/b.c": jax.device_put(arrays["a/b.c"], split("x", "y")),
        "n": jax.device_put(arrays["n"]),
    }
    writer.save(1, {"g": placed}, {}, {})
    writer.close()
    return writer.folder / "1"


@pytest.mark.parametrize("axes", [(), ("x",), (None, "y"), (("y", "x"),), ("y", "x")])
@pytest.mark.parametrize("batch_bytes", [1, 2**31])
def test_each_sharding_reads_the_same_values(folder, arrays, axes, batch_bytes, monkeypatch):
    monkeypatch.setattr(tensor_files, "_BATCH_BYTES", batch_bytes)
    shardings = {"a/b.c": split(*axes), "n": split()}
    wanted = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=shardings[name])
        for name, array in arrays.items()
    }
    loaded = tensor_files.load(folder, {"g": wanted})["g"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].sharding == shardings[name]


def test_another_shape_or_dtype_is_an_error(folder, arrays):
    np.testing.assert_array_equal(
        tensor_files.load_to_host(folder, "g", "n", (), "int32"), arrays["n"]
    )
    with pytest.raises(ValueError, match=r"g/n is int32\[\], not float32\[\]"):
        tensor_files.load_to_host(folder, "g", "n", (), "float32")
    with pytest.raises(ValueError, match=r"g/n is int32\[\], not int32\[1\]"):
        tensor_files.load_to_host(folder, "g", "n", (1,), "int32")


def test_a_removed_checkpoint_first_loses_its_commit_file(tmp_path, monkeypatch):
    """If the removal is interrupted, what is left does not look like a checkpoint."""
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / tensor_files.COMMIT_FILE).touch()
    (tmp_path / "5" / "data").touch()
    path = type(tensor_files.location(tmp_path))
    monkeypatch.setattr(path, "rmtree", lambda folder: None)
    tensor_files.remove(tmp_path / "5")
    assert [file.name for file in (tmp_path / "5").iterdir()] == ["data"]
    monkeypatch.undo()
    tensor_files.remove(tmp_path / "5")
    tensor_files.remove(tmp_path / "5")
    assert not (tmp_path / "5").exists()
