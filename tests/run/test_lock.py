"""The lock of a run folder: who is refused, whose lock is taken over, and who notices that it was."""

import errno
import fcntl
import functools
import os
import subprocess
import sys
import threading
import time

import pytest

from gshard_nmt import paths
from gshard_nmt.errors import UserError
from gshard_nmt.run import lock
from gshard_nmt.run.lock import LOCK_NAME, BucketLock, InUseError, RunLock
from tests.run.fake_time import FakeTime

THEIRS = b"process 7 on other-host trains in it since 2026-01-01 00:00:00 UTC (theirs)"


@pytest.fixture
def folder(bucket):
    return paths.folder_path("workdir", "gs://bucket/run")


@pytest.fixture(params=[RunLock, BucketLock])
def new_lock(request, tmp_path):
    """Makes locks of one folder: on a disk, and in a bucket."""
    folder = tmp_path
    if request.param is BucketLock:
        folder = request.getfixturevalue("folder")
    return functools.partial(request.param, folder)


@pytest.fixture
def clock(monkeypatch):
    """The time of `run/lock.py`, which runs only while something sleeps."""

    def started(step=lambda: None) -> FakeTime:
        time = FakeTime(step)
        monkeypatch.setattr(lock, "time", time)
        return time

    return started


def test_a_second_trainer_is_refused_and_told_who_holds_the_lock(new_lock, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.01)
    with new_lock() as held, pytest.raises(InUseError) as raised, new_lock():
        pytest.fail("two trainers in one folder")
    message = str(raised.value)
    assert (
        f" is in use: process {os.getpid()} on {os.uname().nodename} trains in it since " in message
    )
    assert message.endswith(" UTC. Wait until it ends, stop it, or give another --workdir.")
    with new_lock() as held:  # it is free again
        held.check()


def test_the_lock_of_another_machine_is_waited_for_as_long_as_a_lease(tmp_path, monkeypatch):
    """A file server frees the lock of a machine that is lost after a while. Its name may be ours."""
    held, said = RunLock(tmp_path), []
    held._owner = THEIRS.replace(b"other-host", os.uname().nodename.encode())
    held.__enter__()
    monkeypatch.setattr(lock, "LEASE_SECONDS", 0.0)
    with pytest.raises(InUseError, match="process 7 on "), RunLock(tmp_path):
        pass
    monkeypatch.setattr(lock, "LEASE_SECONDS", 30.0)
    waiting = threading.Timer(0.3, held._free)
    waiting.start()
    with RunLock(tmp_path, say=said.append) as second:
        second.check()
    waiting.join()
    assert len(said) == 1
    assert "may be in use: process 7 on " in said[0]


def test_without_the_number_of_the_kernel_names_tell_machines_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(lock.Path, "read_text", lambda *_, **__: os.stat(tmp_path / "gone"))
    monkeypatch.setattr(time, "sleep", pytest.fail)
    with RunLock(tmp_path), pytest.raises(InUseError), RunLock(tmp_path):
        pytest.fail("two trainers in one folder")


def test_a_process_that_does_not_write_takes_no_lock(tmp_path):
    with RunLock(tmp_path), RunLock(tmp_path, is_holder=False) as second:
        second.check()
    assert os.listdir(tmp_path) == []


HOLD = """
import pathlib, sys, time
from gshard_nmt.run.lock import RunLock

with RunLock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_process_that_is_gone_is_taken_over_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", pytest.fail)
    command = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InUseError, match=f"process {process.pid} on "), RunLock(tmp_path):
            pytest.fail("two trainers in one folder")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # its parent has not noticed
        with RunLock(tmp_path, say=pytest.fail) as held:
            held.check()
    assert os.listdir(tmp_path) == []


def test_a_lock_that_its_owner_removes_meanwhile_is_made_again(tmp_path, monkeypatch):
    first = RunLock(tmp_path)
    first.__enter__()

    def flock_after_the_end(file, kind, flock=fcntl.flock):
        monkeypatch.setattr(fcntl, "flock", flock)
        first.__exit__()
        flock(file, kind)

    monkeypatch.setattr(fcntl, "flock", flock_after_the_end)
    with RunLock(tmp_path) as second, pytest.raises(InUseError), RunLock(tmp_path):
        pytest.fail("two trainers in one folder")
    with RunLock(tmp_path) as third:
        third.check()
    del second


def test_without_locks_of_the_file_system_the_first_trainer_notices_the_second(
    tmp_path, monkeypatch
):
    def no_locks(file, kind):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    said: list[str] = []
    with RunLock(tmp_path, say=said.append) as first, RunLock(tmp_path, say=said.append) as second:
        second.check()
        with pytest.raises(UserError, match=f"but now process {os.getpid()} on .* trains in it"):
            first.check()
    assert len(said) == 2
    assert said[0].endswith("(No locks available): start no second trainer here")


def test_a_lock_without_heartbeat_is_taken_over_after_a_minute(bucket, folder, clock):
    paths.swap(folder / LOCK_NAME, THEIRS, None)
    time, lines = clock(), []
    with BucketLock(folder, say=lines.append) as held:
        held.check()
    assert time.now == 60
    (line,) = lines
    assert "may be in use: process 7 on other-host trains in it since 2026-" in line
    assert line.endswith("Waiting 60 s for a sign that this is so")


def test_a_trainer_that_shows_a_heartbeat_keeps_its_lock(bucket, folder, clock):
    path = folder / LOCK_NAME
    paths.swap(path, THEIRS, None)
    time = clock(lambda: time.now == 5 and paths.swap(path, THEIRS + b"\n1\n", THEIRS))
    with pytest.raises(InUseError, match="process 7 on other-host trains in it since"):
        BucketLock(folder).__enter__()
    assert time.now == 5


@pytest.mark.parametrize("content", [b"{", b"\xff\x00"])
def test_a_damaged_lock_counts_as_one_without_owner(new_lock, folder, tmp_path, content, clock):
    clock()
    (tmp_path / LOCK_NAME).write_bytes(content)
    paths.swap(folder / LOCK_NAME, content, None)
    with new_lock() as held:
        held.check()


def test_a_trainer_that_lost_its_lock_notices_and_leaves_the_new_lock_alone(
    bucket, folder, monkeypatch
):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.01)
    path = folder / LOCK_NAME
    with BucketLock(folder) as slept:
        slept._ended.set()
        slept._thread.join()
        paths.swap(path, THEIRS, paths.read_now(path))
        with pytest.raises(UserError, match="but now process 7 on other-host trains in it"):
            slept.check()
        slept._ended.clear()
        beats = threading.Thread(target=slept._beat)
        beats.start()
        beats.join(0.1)
    beats.join()
    assert paths.read_now(path) == THEIRS


def test_a_lock_that_was_removed_is_lost(tmp_path):
    with RunLock(tmp_path) as held:
        (tmp_path / LOCK_NAME).unlink()
        with pytest.raises(UserError, match="somebody removed it"):
            held.check()
    assert os.listdir(tmp_path) == []


def test_a_heartbeat_comes_by_itself(bucket, folder, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.01)
    with BucketLock(folder) as held:
        limit = time.monotonic() + 60
        while not held._read().endswith(b"\n3\n"):
            assert time.monotonic() < limit
            threading.Event().wait(0.01)
        held.check()


def test_of_two_trainers_that_take_over_one_lock_only_one_gets_it(bucket, folder, clock):
    paths.swap(folder / LOCK_NAME, THEIRS, None)
    other = BucketLock(folder)
    time = clock(lambda: time.now == 60 and paths.swap(other._path, other._owner, THEIRS))
    with pytest.raises(InUseError), BucketLock(folder):
        pytest.fail("two trainers in one folder")


def test_a_store_that_refuses_is_an_error_with_the_name_of_the_folder(bucket, folder):
    bucket.full = True
    with pytest.raises(UserError, match=r"^--workdir gs://bucket/run: it cannot be written: .*403"):
        BucketLock(folder).__enter__()
