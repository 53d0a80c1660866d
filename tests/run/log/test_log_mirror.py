"""The logs of a run folder in a bucket."""

import json
import types

import pytest

from gshard_nmt import paths
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log import log_mirror
from gshard_nmt.run.log.log_mirror import LogMirror
from gshard_nmt.run.log.progress import MetricsLog


@pytest.fixture
def folder(bucket):
    return paths.folder_path("workdir", "gs://bucket/run")


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(log_mirror, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_on_a_disk_the_logs_are_written_in_place(tmp_path):
    mirror = LogMirror(tmp_path, (), print)
    assert mirror.folder == tmp_path
    mirror.upload(at_once=True)
    mirror.close()
    assert tmp_path.is_dir()


def test_what_has_changed_is_copied_once_a_minute_and_at_the_end(bucket, folder, clock):
    mirror = LogMirror(folder, (), pytest.fail)
    local = mirror.folder
    (local / "curves").mkdir()
    (local / "curves" / "a").write_text("1")
    (local / "b").write_text("1")
    clock.now = 59
    mirror.upload()
    assert not bucket.names()
    clock.now = 60
    mirror.upload()
    assert bucket.names() == ["bucket/run/b", "bucket/run/curves/a"]
    generation = bucket.read("bucket/run/b")[1]
    (local / "curves" / "a").write_text("12")
    mirror.upload(at_once=True)
    assert bucket.read("bucket/run/curves/a")[0] == b"12"
    assert bucket.read("bucket/run/b")[1] == generation
    (local / "b").write_text("123")
    mirror.close()
    assert bucket.read("bucket/run/b")[0] == b"123"
    assert not local.exists()


def test_a_bucket_that_cannot_be_written_ends_no_run(bucket, folder, clock):
    lines = []
    mirror = LogMirror(folder, (), lines.append)
    (mirror.folder / "a").write_text("1")
    bucket.full = True
    for _ in range(3):
        mirror.upload(at_once=True)
    (line,) = lines
    assert line.startswith("the logs cannot be copied to gs://bucket/run: ")
    bucket.full = False
    mirror.close()
    assert bucket.read("bucket/run/a")[0] == b"1"


def test_the_log_of_a_run_in_a_bucket_goes_on_from_its_checkpoint(bucket, folder):
    run = RunFolder(folder)
    log = MetricsLog(run, step=0)
    for step in (1, 2, 3):
        log.write(step, {"nll": 1.0 / step})
    log.close()
    log = MetricsLog(run, step=2)
    log.write(3, {"nll": 9.0})
    log.flush()
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert lines == [{"step": 1, "nll": 1.0}, {"step": 2, "nll": 0.5}, {"step": 3, "nll": 9.0}]
    log.close()
    # Each start has an event file of its own.
    assert len(bucket.names("bucket/run/tensorboard/events")) == 2
