"""The logs of a run: cut and damaged lines, full disks, files that somebody removes."""

import errno
import json
import os
import subprocess
import sys

import pytest

from gshard_nmt import paths
from gshard_nmt.run import log as log_module
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log import MetricsLog

LINES = [f'{{"step": {step}}}\n'.encode() for step in (5, 10, 10, 15)]
UNTIL_10 = b"".join(LINES[:3])
NEXT = b'{"step": 11, "event": "alarm"}\n'


def resumed(run: RunFolder, content: bytes) -> bytes:
    """Returns the file after a resume at step 10, with a line that is written next."""
    run.metrics.write_bytes(content)
    log = MetricsLog(run, step=10, say=pytest.fail)
    log.write_event(11, "alarm", {})
    log.close()
    return run.metrics.read_bytes()


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


def steps_of(run) -> list[int]:
    return [json.loads(line)["step"] for line in run.metrics.read_text().splitlines()]


@pytest.mark.parametrize("cut", range(1, len(LINES[2])))
def test_a_last_line_that_was_cut_anywhere_is_dropped(run, cut):
    assert resumed(run, UNTIL_10[:-cut]) == b"".join(LINES[:2]) + NEXT


@pytest.mark.parametrize("damage", [b'{"st\n', b"\x00" * 50 + b"\n", b"\xff\xfe\n", b"\n", b"5\n"])
def test_damaged_lines_are_dropped_and_the_lines_after_them_stay(run, damage):
    lines = [LINES[0], damage, LINES[1], damage, damage, LINES[3], LINES[2]]
    assert resumed(run, b"".join(lines)) == UNTIL_10 + NEXT


def test_the_scores_of_a_step_that_is_validated_anew_go(run):
    scores, other = b'{"step": 10, "dev_nll": 1.0}\n', b'{"step": 10, "loss": 1.0}\n'
    run.metrics.write_bytes(scores + other)
    MetricsLog(run, step=10, validates=True).close()
    assert run.metrics.read_bytes() == other


def test_only_the_process_that_writes_touches_the_log(run):
    log = MetricsLog(run, step=0, writes=False)
    log.write(1, {"nll": 1.0})
    log.write_event(1, "divergence", {})
    log.close()
    assert not list(run.path.iterdir())


def test_what_is_not_finite_is_null(run):
    log = MetricsLog(run, step=0)
    log.write(1, {"nll": float("nan")})
    log.write_event(1, "divergence", {"norm": float("inf"), "status": 1})
    log.close()
    assert run.metrics.read_text().splitlines() == [
        '{"step": 1, "nll": null}',
        '{"step": 1, "event": "divergence", "norm": null, "status": 1}',
    ]


def test_lines_wait_while_the_log_cannot_be_written(run):
    said = []
    log = MetricsLog(run, step=0, say=said.append)
    log.write_event(1, "alarm", {})
    saved = run.metrics.rename(run.path / "saved")
    run.metrics.mkdir()
    for step in (2, 3, 4):
        log.write_event(step, "alarm", {})
    message = f"the log {run.metrics} cannot be written: Is a directory. Training goes on"
    assert said == [message]
    run.metrics.rmdir()
    saved.rename(run.metrics)
    log.write_event(5, "alarm", {})
    assert steps_of(run) == [1, 2, 3, 4, 5]
    run.metrics.unlink()  # a log that somebody removes is made again
    log.write_event(6, "alarm", {})
    assert steps_of(run) == [6]
    assert said == [message]
    log.close()


FULL = """
import json, pathlib, resource, sys
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log import MetricsLog

said = []
log = MetricsLog(RunFolder(pathlib.Path(sys.argv[1])), 0, say=said.append)
log.write(0, {"nll": 0.0} | {f"figure_{n}": 1.0 for n in range(9)})
resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))
for step in range(1, 41):
    log.write(step, {f"figure_{n}": 1.0 for n in range(9)})
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.write(41, {"nll": 41.0})
log.close()
print(json.dumps(said))
"""


def test_a_full_disk_ends_nothing_and_loses_no_line(run):
    command = [sys.executable, "-c", FULL, run.path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert steps_of(run) == list(range(42))
    assert done.stderr == ""
    large = os.strerror(errno.EFBIG)
    assert sorted(json.loads(done.stdout)) == [
        f"the log {run.path / name} cannot be written: {large}. Training goes on"
        for name in ("metrics.jsonl", "tensorboard")
    ]
    assert 41.0 in scalars(run.path / "tensorboard")["nll"].values()


def scalars(folder) -> dict[str, dict[int, float]]:
    """Reads the scalars of all event files, by name and step."""
    import struct

    from tensorboardX.proto import event_pb2

    values: dict[str, dict[int, float]] = {}
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while len(data) >= 12:
            (length,) = struct.unpack("<Q", data[:8])
            if len(data) < 16 + length:
                break  # the disk was full
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                values.setdefault(value.tag, {})[event.step] = value.simple_value
    return values


def test_event_files_hold_the_scalars_and_a_second_writer_overwrites_none(run):
    for step in (1, 2, 3):  # within one second
        log = MetricsLog(run, step - 1, say=pytest.fail)
        log.write(step, {"nll": float(step), "dev_nll/fr": 0.5})
        log.close()
    assert scalars(run.path / "tensorboard") == {
        "nll": {1: 1.0, 2: 2.0, 3: 3.0},
        "dev_nll/fr": {1: 0.5, 2: 0.5, 3: 0.5},
    }


@pytest.fixture
def folder(bucket):
    return paths.folder_path("workdir", "gs://bucket/run")


def test_what_has_changed_is_copied_once_a_minute_and_at_the_end(bucket, folder, monkeypatch):
    log = MetricsLog(RunFolder(folder), step=0, say=pytest.fail)
    log.write(1, {"nll": 1.0})
    assert not bucket.names()
    now = log_module.time.monotonic()
    monkeypatch.setattr(log_module.time, "monotonic", lambda: now + 60)
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
    assert line.startswith("the log gs://bucket/run cannot be written: ")
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
