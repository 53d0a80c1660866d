"""The files of arrays, read by shards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gshard_nmt.reading import UnsoundError
from gshard_nmt.run.checkpoint import tensor_files
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import Tensor

# Whole arrays of at most 64 KiB, of 32 bits an element, are packed.
PLACES = {("g", "n"): 0, ("g", "small"): 1}


def split(*axes: str) -> jax.sharding.NamedSharding:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "a/b.c": rng.standard_normal((8, 6)).astype(np.float32),
        "n": np.array(3, np.int32),
        "small": rng.standard_normal((2, 3)).astype(np.float32),
        "half": rng.standard_normal(4).astype(jnp.bfloat16),
        "large": rng.standard_normal((2, 2**14)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory, arrays):
    """A checkpoint whose larger array was written by four devices."""
    writer = CheckpointWriter(tmp_path_factory.mktemp("with space %41"))
    placed = {name: jax.device_put(array, split()) for name, array in arrays.items()}
    placed["a/b.c"] = jax.device_put(arrays["a/b.c"], split("x", "y"))
    writer.save(1, {"g": placed}, {}, {})
    writer.close()
    return writer.folder / "1"


@pytest.mark.parametrize("axes", [(), ("x",), (None, "y"), (("y", "x"),), ("y", "x")])
def test_each_sharding_reads_the_same_values(folder, arrays, axes):
    shardings = {**dict.fromkeys(arrays, split()), "a/b.c": split(*axes), "small": split("x")}
    wanted = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=shardings[name])
        for name, array in arrays.items()
    }
    loaded = tensor_files.load(folder, {"g": wanted}, PLACES)["g"]
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].sharding == shardings[name]


def tensor(name: str, shape: tuple[int, ...], dtype: object) -> Tensor:
    return Tensor(shape, dtype, "", np.array(0, np.uint32), PLACES.get(("g", name)))


def test_one_array_is_read_to_the_host(folder, arrays):
    for name, array in arrays.items():
        read = tensor_files.load_to_host(folder, "g", name, tensor(name, array.shape, array.dtype))
        np.testing.assert_array_equal(read, array)
        assert read.dtype == array.dtype


def test_small_arrays_are_packed(folder, arrays):
    placed = {name: jax.device_put(array, split()) for name, array in arrays.items()}
    placed["a/b.c"] = jax.device_put(arrays["a/b.c"], split("x"))
    tree, places = tensor_files.pack({"g": placed, "h": {"only": np.zeros(2, np.int32)}})
    assert places == {**PLACES, ("h", "only"): 7}
    assert {group: sorted(table) for group, table in tree.items()} == {
        "g": ["a/b.c", "half", "large"],
        "packed": ["words"],
    }
    words = tree["packed"]["words"]
    assert (words.dtype, words.shape) == (np.uint32, (9,))
    assert CheckpointWriter(folder.parent).manifest(1).places == PLACES


def test_another_shape_or_dtype_is_an_error(folder):
    with pytest.raises(UnsoundError, match=r"g/large is float32\[2, 16384\], not int32"):
        tensor_files.load_to_host(folder, "g", "large", tensor("large", (2, 2**14), "int32"))
    with pytest.raises(UnsoundError, match=r"g/large is float32\[2, 16384\], not float32\[3\]"):
        tensor_files.load_to_host(folder, "g", "large", tensor("large", (3,), "float32"))


def test_a_removed_checkpoint_first_loses_its_commit_file_and_manifest(tmp_path, monkeypatch):
    """If the removal is interrupted, what is left does not look like a checkpoint."""
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / tensor_files.COMMIT_FILE).touch()
    (tmp_path / "5" / "manifest.json").touch()
    (tmp_path / "5" / "data").touch()
    monkeypatch.setattr(type(tensor_files.location(tmp_path)), "rmtree", lambda folder: None)
    writer = CheckpointWriter(tmp_path)
    writer._remove(5)
    assert [file.name for file in (tmp_path / "5").iterdir()] == ["data"]
    monkeypatch.undo()
    writer._remove(5)
    writer._remove(5)
    assert not (tmp_path / "5").exists()


DAMAGE = [
    ValueError("DATA_LOSS: Error decoding manifest: CRC-32C checksum verification failed"),
    ValueError("OUT_OF_RANGE: Requested byte range [0, 9) is not valid for size 8"),
    ValueError("NOT_FOUND: Error opening zarr driver"),
    ValueError("NOT_FOUND: x [os_error_code='2']"),
    ValueError("NOT_FOUND: x [http_response_code='404']"),
    UnsoundError("g/large is float32[2], not float32[3]"),
    ValueError("Error reading local file: Error decoding b-tree node: ZSTD failed"),
    FileNotFoundError(2, "No such file"),
]
NO_DAMAGE = [
    KeyError("words"),
    ValueError('Error parsing object member "kvstore": Invalid file path: "/a/../b/"'),
    RuntimeError("Unable to cast Python instance"),
    OSError(5, "Input/output error"),
    ValueError("UNKNOWN: Error reading local file [os_error_code='5']"),
    ValueError("ABORTED: Stale file handle [os_error_code='116']"),
    ValueError("FAILED_PRECONDITION: Bad file descriptor [os_error_code='9']"),
    ValueError("INVALID_ARGUMENT: x [http_response_code='400']"),
    ValueError("RESOURCE_EXHAUSTED: Too many open files [os_error_code='24']"),
    ValueError("UNAVAILABLE: 503"),
    ValueError("DEADLINE_EXCEEDED: x"),
    ValueError("PERMISSION_DENIED: x"),
]


@pytest.mark.parametrize("error", [*DAMAGE, *NO_DAMAGE])
def test_only_what_the_files_say_proves_damage(error):
    problem = tensor_files.problem_of(error)
    assert problem.is_damage == (error in DAMAGE)
    assert bool(getattr(problem, "advice", "")) == ("DENIED" in str(error))


def test_the_cause_of_a_long_error_is_shown():
    text = f'UNKNOWN: Error reading "{"x" * 900}": Input/output error [tensorstore_spec=...]'
    shown = str(tensor_files.problem_of(ValueError(text)))
    assert shown.startswith('its arrays cannot be read: UNKNOWN: Error reading "x')
    assert shown.endswith('": Input/output error')
    assert len(shown) < 330
