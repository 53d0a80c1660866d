"""Checkpoints: written in the background, one of each kind, read back as they were."""

import jax
import numpy as np
import pytest

from gshard_nmt import paths
from gshard_nmt.errors import UserError
from gshard_nmt.run.checkpoint import BEST, LAST, Checkpoints
from tests import fake_bucket


@pytest.fixture
def checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    yield checkpoints
    checkpoints.close()


def groups(scale: float) -> dict[str, dict]:
    """A state: weights on a device, and cursors on the host."""
    weights = {
        "a/w": scale * np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.float32([scale]),
    }
    return {
        "parameters": {name: jax.device_put(array) for name, array in weights.items()},
        "input": {"cursors": np.arange(3) + 2**40},
    }


def abstract(arrays: dict) -> dict:
    return {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
        for name, array in arrays.items()
    }


def assert_equal_arrays(actual: dict, expected: dict) -> None:
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)
        assert actual[name].dtype == array.dtype


def test_a_checkpoint_is_read_as_it_was_written(checkpoints):
    saved = groups(1.5)
    checkpoints.save(LAST, 3, saved, {"step": 3, "tokens": {"fr": 2**40}})
    checkpoints.save(BEST, 2, {"parameters": groups(9.0)["parameters"]}, {"score": 0.5})
    checkpoints.wait()
    specs = abstract(saved["parameters"])
    restored = checkpoints.restore(LAST, {"parameters": specs, "input": {}})
    assert restored.keys() == saved.keys()
    for name in saved:
        assert_equal_arrays(restored[name], saved[name])
    assert restored["parameters"]["b"].sharding == saved["parameters"]["b"].sharding
    assert checkpoints.metadata(LAST) == {"step": 3, "tokens": {"fr": 2**40}}
    # One group alone, of the other kind.
    best = checkpoints.restore(BEST, {"parameters": specs})
    assert_equal_arrays(best["parameters"], groups(9.0)["parameters"])
    assert checkpoints.metadata(BEST) == {"score": 0.5}


def test_the_newest_checkpoint_of_a_kind_replaces_the_older(checkpoints):
    assert checkpoints.latest(LAST) is None
    for step in (3, 5, 5):
        checkpoints.save(LAST, step, groups(step), {"step": step})
    checkpoints.wait()
    assert checkpoints.latest(LAST) == 5
    assert checkpoints.latest(BEST) is None
    assert [path.name for path in (checkpoints.folder / LAST).iterdir()] == ["5"]
    # A new process reads what this one wrote.
    checkpoints.close()
    again = Checkpoints(checkpoints.folder)
    assert again.latest(LAST) == again.metadata(LAST)["step"] == 5


def test_arrays_may_change_as_soon_as_save_returns(checkpoints):
    array = np.arange(3)
    checkpoints.save(LAST, 1, {"input": {"cursors": array}}, {})
    array += 7
    checkpoints.wait()
    assert checkpoints.restore(LAST, {"input": {}})["input"]["cursors"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", [LAST, BEST])
def test_a_missing_checkpoint_is_an_error_that_names_it(checkpoints, kind):
    for read in (checkpoints.metadata, lambda kind: checkpoints.restore(kind, {"input": {}})):
        with pytest.raises(UserError, match=rf"has no '{kind}' checkpoint; train with gshard-tr"):
            read(kind)
    assert not checkpoints.folder.exists()


def test_a_bucket_has_a_checkpoint_only_after_its_commit_file():
    with fake_bucket.serving() as bucket:
        folder = paths.folder_path("workdir", "gs://bucket/run") / "checkpoints"
        checkpoints = Checkpoints(folder)
        saved = groups(1.5)
        for step in (3, 5):
            checkpoints.save(LAST, step, saved, {"step": step})
        checkpoints.close()
        # The newest of the two stays.
        names = bucket.names("bucket/run/checkpoints/last/")
        assert "bucket/run/checkpoints/last/5/commit_success.txt" in names
        assert not [name for name in names if "/last/3/" in name]
        assert checkpoints.metadata(LAST) == {"step": 5}
        restored = checkpoints.restore(LAST, {"parameters": abstract(saved["parameters"])})
        assert_equal_arrays(restored["parameters"], saved["parameters"])
        checkpoints.close()
        # A host that was killed while it wrote leaves a checkpoint without this file.
        bucket.remove("bucket/run/checkpoints/last/5/commit_success.txt")
        assert checkpoints.latest(LAST) is None
        checkpoints.close()
