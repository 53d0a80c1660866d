"""The logs of a run: cut and damaged lines, full disks, files that somebody removes."""

import errno
import json
import os
import resource
import subprocess
import sys

import pytest

from gshard_nmt import paths
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log import line_log
from gshard_nmt.run.log.line_log import EventFiles, LineLog, MetricsLog

LINES = [f'{{"step": {step}}}\n'.encode() for step in (5, 10, 10, 15)]


@pytest.fixture
def said():
    return []


@pytest.fixture
def log(tmp_path, said):
    return LineLog(tmp_path / "metrics.jsonl", said.append)


def resumed(log: LineLog, content: bytes, step: int = 10) -> bytes:
    """Returns the file after a resume, with a line that is written next."""
    log._path.write_bytes(content)
    log.resume(step)
    log.append({"step": step + 1})
    return log._path.read_bytes()


def steps_of(path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


NEXT = b'{"step": 11}\n'
UNTIL_10 = b"".join(LINES[:3])


def test_lines_after_the_checkpoint_are_dropped(log, said):
    assert resumed(log, b"".join(LINES)) == UNTIL_10 + NEXT
    assert said == []


@pytest.mark.parametrize("cut", range(1, len(LINES[2])))
def test_a_last_line_that_was_cut_anywhere_is_dropped(log, said, cut, tmp_path):
    content = UNTIL_10[:-cut]
    whole = UNTIL_10 if cut == 1 else b"".join(LINES[:2])  # only the newline is missing
    assert resumed(log, content) == whole + NEXT
    assert said == []
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


@pytest.mark.parametrize("damage", [b'{"st', b"\x00" * 50, b"\xff\xfe", b"", b"5"])
def test_what_follows_a_damaged_line_is_moved_aside(log, said, tmp_path, damage):
    rest = damage + b"\n" + LINES[2]
    assert resumed(log, LINES[0] + LINES[1] + rest) == LINES[0] + LINES[1] + NEXT
    assert (tmp_path / "metrics.damaged-1.jsonl").read_bytes() == rest
    assert len(said) == 1
    assert "is damaged 25 bytes after its beginning" in said[0]
    assert said[0].endswith("are now in metrics.damaged-1.jsonl")


def test_a_zeroed_tail_as_power_cuts_leave_it_is_dropped(log, tmp_path):
    assert resumed(log, UNTIL_10 + b"\x00" * 4096) == UNTIL_10 + NEXT
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_a_log_that_somebody_removes_is_made_again(log):
    log.append({"step": 1})
    log._path.unlink()
    log.append({"step": 2})
    assert log._path.read_bytes() == b'{"step": 2}\n'


def test_lines_wait_while_the_log_cannot_be_written(log, said):
    log.append({"step": 1})
    saved = log._path.rename(log._path.with_name("saved"))
    log._path.mkdir()
    for step in (2, 3, 4):
        log.append({"step": step})
    assert len(said) == 1
    assert said[0] == (
        f"{log._path} cannot be written: Is a directory. Training goes on; the lines are written as "
        "soon as it is possible again"
    )
    log._path.rmdir()
    saved.rename(log._path)
    log.append({"step": 5})
    assert steps_of(log._path) == [1, 2, 3, 4, 5]
    assert said[1] == f"{log._path} is written again"
    log._path.rename(saved)
    log._path.mkdir()
    log.append({"step": 6})
    assert len(said) == 3


FULL = """
import json, pathlib, resource, sys
from gshard_nmt.run.log.line_log import EventFiles, LineLog

folder, said = pathlib.Path(sys.argv[1]), []
log = LineLog(folder / "metrics.jsonl", said.append)
events = EventFiles(folder / "tensorboard", 1, said.append)
log.append({"step": 0, "text": "x" * 400})
events.add(0, {"nll": 0.0})
resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
for step in range(1, 41):
    log.append({"step": step, "text": "y" * 60})
    events.add(step, {f"nll/{n}": 1.0 for n in range(9)})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.append({"step": 41})
events.add(41, {"nll": 41.0})
events.close()
print(json.dumps(said))
"""


def test_a_full_disk_ends_nothing_and_loses_no_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = json.loads(done.stdout)
    assert steps_of(tmp_path / "metrics.jsonl") == list(range(42))
    assert done.stderr == ""
    large = os.strerror(errno.EFBIG)
    assert said[0].startswith(
        f"{tmp_path / 'metrics.jsonl'} cannot be written: {large}. Training goes"
    )
    assert said[1].startswith(f"{tmp_path / 'tensorboard'} cannot be written: {large}. Training")
    assert len(said) == 3
    assert 41.0 in scalars(tmp_path / "tensorboard")["nll"].values()


def scalars(folder) -> dict[str, dict[int, float]]:
    """Reads the scalars of all event files, by name and step."""
    import struct

    from tensorboardX.proto import event_pb2

    values: dict[str, dict[int, float]] = {}
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while len(data) >= 12:
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                values.setdefault(value.tag, {})[event.step] = value.simple_value
    return values


def test_event_files_hold_the_scalars_and_a_second_writer_overwrites_none(tmp_path):
    for first in (1, 2, 3):  # within one second
        events = EventFiles(tmp_path, first, lambda line: pytest.fail(line))
        events.add(first, {"nll": float(first), "dev_nll/fr": 0.5})
        events.close()
    assert scalars(tmp_path) == {
        "nll": {1: 1.0, 2: 2.0, 3: 3.0},
        "dev_nll/fr": {1: 0.5, 2: 0.5, 3: 0.5},
    }
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.fixture
def folder(bucket):
    return paths.folder_path("workdir", "gs://bucket/run")


def test_what_has_changed_is_copied_once_a_minute_and_at_the_end(bucket, folder, monkeypatch):
    log = MetricsLog(RunFolder(folder), step=0, say=pytest.fail)
    log.write(1, {"nll": 1.0})
    assert not bucket.names()
    now = line_log.time.monotonic()
    monkeypatch.setattr(line_log.time, "monotonic", lambda: now + 60)
    log.write(2, {"nll": 1.0})
    lines, _ = bucket.read("bucket/run/metrics.jsonl")
    assert lines.count(b"\n") == 2
    assert len(bucket.names()) == 2
    log.write_event(3, "alarm", {})
    log.close()
    assert bucket.read("bucket/run/metrics.jsonl")[0].count(b"\n") == 3
    assert not log._folder.exists()


def test_a_bucket_that_cannot_be_written_ends_no_run(bucket, folder):
    lines = []
    log = MetricsLog(RunFolder(folder), step=0, say=lines.append)
    bucket.full = True
    for step in (1, 2, 3):
        log.write(step, {"nll": 1.0})
        log.flush()
    (line,) = lines
    assert line.startswith("the logs cannot be copied to gs://bucket/run: ")
    bucket.full = False
    log.close()
    assert bucket.read("bucket/run/metrics.jsonl")[0].count(b"\n") == 3


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
