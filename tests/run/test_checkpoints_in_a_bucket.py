"""Checkpoints of a run folder in a bucket."""

import pytest

from gshard_nmt import paths
from gshard_nmt.errors import UserError
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.checkpoint.tensor_files import COMMIT_FILE
from tests.run.checkpoints import LETTERS, abstract, assert_equal, state


def test_a_bucket_has_a_checkpoint_only_after_its_commit_file(bucket):
    folder = paths.folder_path("workdir", "gs://bucket/run") / "checkpoints"
    writer = CheckpointWriter(folder)
    for step in (3, 5, 7, 9):
        assert writer.save(step, state(step), LETTERS, {"step": step}, Scores())
    writer.close()
    assert {name.split("/")[3] for name in bucket.names("bucket/run/checkpoints/")} == {"7", "9"}
    groups = abstract(state(9))
    restored = Checkpoints(folder).restore(groups)
    assert restored.manifest.step == 9
    assert_equal(restored.groups, state(9))
    # A host that was killed just before the commit leaves a checkpoint without this file.
    bucket.remove(f"bucket/run/checkpoints/9/{COMMIT_FILE}")
    assert Checkpoints(folder).steps() == [7]
    assert CheckpointWriter(folder).adopt() == [9]
    assert Checkpoints(folder).steps() == [7, 9]
    # A host that was killed earlier leaves no manifest either.
    for name in (COMMIT_FILE, "manifest.json"):
        bucket.remove(f"bucket/run/checkpoints/9/{name}")
    assert CheckpointWriter(folder).start_saving() == [9]
    # A byte of an array that is not what was written.
    name = next(iter(bucket.names("bucket/run/checkpoints/7/d/")))
    content = bytearray(bucket.read(name)[0])
    content[len(content) // 2] ^= 1
    bucket.write(name, bytes(content))
    with pytest.raises(UserError, match="no checkpoint can be used"):
        Checkpoints(folder).restore(groups)
