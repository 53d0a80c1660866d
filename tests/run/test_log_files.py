"""Files that grow while a run trains, on a disk and in a bucket."""

import struct
import types

import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.record_writer import masked_crc32c

from gshard_nmt import paths
from gshard_nmt.run import log_files
from gshard_nmt.run.log_files import AppendedFile, EventLog
from tests import fake_bucket


@pytest.fixture
def bucket():
    with fake_bucket.serving() as objects:
        yield objects


def test_each_line_is_in_the_file_at_once(tmp_path):
    file = tmp_path / "log"
    file.write_text("of an older run")
    log = AppendedFile(file, b"kept\n")
    log.append(b"one\n")
    assert file.read_bytes() == b"kept\none\n"
    log.append(b"two\n")
    log.close()
    log.close()
    assert file.read_bytes() == b"kept\none\ntwo\n"


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path, monkeypatch):
    log = AppendedFile(tmp_path / "log")

    def full(file: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log_files.os, "write", full)
    with pytest.raises(OSError, match="No space left") as raised:
        log.append(b"one\n")
    assert raised.value.filename == str(tmp_path / "log")
    log.close()


def test_in_a_bucket_the_file_is_written_once_a_minute_and_at_a_flush(bucket, monkeypatch):
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(log_files, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    file = paths.folder_path("workdir", "gs://bucket/run") / "log"
    log = AppendedFile(file, b"kept\n")
    assert file.read_bytes() == b"kept\n"
    log.append(b"one\n")
    assert file.read_bytes() == b"kept\n"
    log.flush()
    assert file.read_bytes() == b"kept\none\n"
    clock.now = 59
    log.append(b"two\n")
    assert file.read_bytes() == b"kept\none\n"
    clock.now = 61
    log.append(b"three\n")
    assert file.read_bytes() == b"kept\none\ntwo\nthree\n"
    log.append(b"four\n")
    log.close()
    assert file.read_bytes() == b"kept\none\ntwo\nthree\nfour\n"


def events(content: bytes) -> list[event_pb2.Event]:
    """Parses an event file as TensorBoard does, with all checksums."""
    parsed = []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        data = content[12 : 12 + length]
        assert content[8:12] == struct.pack("<I", masked_crc32c(content[:8]))
        assert content[12 + length : 16 + length] == struct.pack("<I", masked_crc32c(data))
        parsed.append(event_pb2.Event.FromString(data))
        content = content[16 + length :]
    return parsed


@pytest.mark.parametrize("in_a_bucket", [False, True])
def test_events_have_the_format_of_tensorboard(bucket, tmp_path, in_a_bucket):
    folder = paths.folder_path("workdir", "gs://bucket/run") if in_a_bucket else tmp_path / "run"
    log = EventLog(folder, first_step=5)
    log.write(5, {"loss": 2.5, "dev_nll/fr": 1.25})
    log.write(6, {"loss": 2.0})
    log.close()
    (file,) = folder.iterdir()
    version, start, *rest = events(file.read_bytes())
    assert file.name.startswith("events.out.tfevents.")
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (5, event_pb2.SessionLog.START)
    values = [(e.step, v.tag, v.simple_value) for e in rest for v in e.summary.value]
    assert values == [(5, "loss", 2.5), (5, "dev_nll/fr", 1.25), (6, "loss", 2.0)]
