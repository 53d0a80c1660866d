"""The lock of a run folder: who is refused, whose lock is taken over, and who notices that it was."""

import contextlib
import dataclasses
import functools
import json
import os
import subprocess
import sys
import types

import pytest

from gshard_nmt import paths
from gshard_nmt.errors import UserError
from gshard_nmt.run import lock
from gshard_nmt.run.lock import LOCK_NAME, BucketLock, Owner, RunLock
from tests.run.fake_time import FakeTime

HERE = Owner.this_process()
OTHER_HOST = dataclasses.replace(
    HERE, host="other-host", pid=7, boot="another boot", token="theirs"
)


def write_lock(folder, owner: Owner):
    """Writes the lock of another owner."""
    path = folder / LOCK_NAME
    path.write_text(json.dumps(dataclasses.asdict(owner)) + f"\n{0:012}\n")
    return path


def owner_of(folder) -> Owner:
    return lock.owner_of((folder / LOCK_NAME).read_bytes())


@pytest.fixture
def ended_process() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        pass
    return process.pid


def test_the_lock_is_there_while_it_is_held_and_gone_afterwards(tmp_path):
    with RunLock(tmp_path) as held:
        assert os.listdir(tmp_path) == [LOCK_NAME]
        assert owner_of(tmp_path).pid == os.getpid()
        held.check()
    assert os.listdir(tmp_path) == []


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


def test_a_second_trainer_is_refused_and_told_who_holds_the_lock(new_lock):
    with new_lock() as held, pytest.raises(UserError) as raised, new_lock():
        pytest.fail("two trainers in one folder")
    message = str(raised.value)
    assert f" is in use: process {os.getpid()} on {HERE.host} trains in it since " in message
    assert message.endswith(" UTC. Wait until it ends, stop it, or give another --workdir.")
    with new_lock() as held:  # it is free again
        held.check()


def test_a_process_that_does_not_write_takes_no_lock(tmp_path):
    with RunLock(tmp_path), RunLock(tmp_path, is_holder=False) as second:
        second.check()
    assert os.listdir(tmp_path) == []


def test_the_lock_of_a_process_that_is_gone_is_taken_over_at_once(tmp_path, ended_process):
    write_lock(tmp_path, dataclasses.replace(HERE, pid=ended_process, token="theirs"))
    time = FakeTime()
    with RunLock(tmp_path, clock=time) as held:
        held.check()
    assert time.now == 0


def test_another_process_with_the_number_of_the_owner_is_not_mistaken_for_it(tmp_path):
    write_lock(tmp_path, dataclasses.replace(HERE, started=HERE.started - 1, token="theirs"))
    with RunLock(tmp_path) as held:
        held.check()


def test_a_killed_process_whose_parent_has_not_noticed_is_gone(tmp_path):
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    _, started = lock.state_of(process.pid)
    owner = dataclasses.replace(HERE, pid=process.pid, started=started)
    assert owner.is_running()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not owner.is_running()
    process.wait()


@pytest.mark.parametrize(
    "elsewhere",
    [{"boot": "another boot"}, {"namespace": "pid:[1]"}, {"boot": "", "namespace": ""}],
)
def test_a_lock_from_elsewhere_is_taken_over_after_a_minute_without_heartbeat(new_lock, elsewhere):
    new_lock(owner=dataclasses.replace(OTHER_HOST, **elsewhere)).create()
    time, lines = FakeTime(), []
    with new_lock(say=lines.append, clock=time) as held:
        held.check()
    assert time.now == 60
    (line,) = lines
    assert line.endswith(
        " is locked by process 7 on other-host; waiting 60 s for a sign that it is still alive"
    )


def test_a_trainer_elsewhere_that_shows_a_heartbeat_keeps_its_lock(new_lock):
    theirs = new_lock(owner=OTHER_HOST)
    theirs.create()
    time = FakeTime(lambda: time.now == 5 and theirs.beat())
    with pytest.raises(UserError, match="process 7 on other-host trains in it since"):
        new_lock(clock=time).__enter__()
    assert time.now == 5
    theirs.check()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 5}', b"\xff\x00"])
def test_a_damaged_lock_counts_as_one_without_heartbeat(tmp_path, content):
    (tmp_path / LOCK_NAME).write_bytes(content)
    time = FakeTime()
    with RunLock(tmp_path, clock=time) as held:
        held.check()
    assert time.now == 60


def test_a_trainer_that_lost_its_lock_notices_and_leaves_the_new_lock_alone(new_lock):
    theirs = new_lock(owner=OTHER_HOST)
    with new_lock(clock=FakeTime()) as slept:
        slept.remove(slept.look())
        theirs.create()
        with pytest.raises(UserError, match="7 on other-host took it over"):
            slept.check()
        slept.beat()
    theirs.check()
    assert theirs.look().endswith(f"\n{0:012}\n".encode())


def test_a_lock_that_was_removed_is_lost(tmp_path):
    time = FakeTime()
    with RunLock(tmp_path, clock=time) as held:
        (tmp_path / LOCK_NAME).unlink()
        with pytest.raises(UserError, match="somebody removed it"):
            held.check()
    assert os.listdir(tmp_path) == []


def test_a_lock_that_is_away_for_a_moment_is_not_lost(tmp_path):
    away = tmp_path / "away"
    time = FakeTime(lambda: away.rename(tmp_path / LOCK_NAME))
    with RunLock(tmp_path, clock=time) as held:
        (tmp_path / LOCK_NAME).rename(away)
        held.check()


def test_of_two_trainers_that_find_a_dead_lock_one_gets_it(tmp_path):
    """The slower one has judged the old lock when the faster one already holds a new lock."""
    write_lock(tmp_path, OTHER_HOST)
    slower = RunLock(tmp_path)
    dead = slower.look()
    (tmp_path / LOCK_NAME).unlink()
    with RunLock(tmp_path) as faster:
        slower.remove(dead)
        faster.check()
        with pytest.raises(UserError, match="is in use"), slower:
            pytest.fail("two trainers in one folder")
        faster.check()


def test_what_killed_trainers_moved_aside_is_removed_and_a_live_lock_is_put_back(tmp_path):
    """Another trainer took it for the dead lock that it had seen."""
    held = RunLock(tmp_path)
    assert held.create()
    (tmp_path / LOCK_NAME).rename(tmp_path / f"{LOCK_NAME}.other")
    (tmp_path / f"{LOCK_NAME}.dead").write_bytes(b"half")
    assert held.create()
    assert sorted(os.listdir(tmp_path)) == [LOCK_NAME, f"{LOCK_NAME}.other"]
    held.remove(b"another lock")
    held.check()


def test_a_lock_that_is_not_written_yet_is_watched_and_not_taken(tmp_path):
    (tmp_path / LOCK_NAME).touch()
    time = FakeTime(lambda: write_lock(tmp_path, OTHER_HOST))
    with pytest.raises(UserError, match="process 7 on other-host trains in it"):
        RunLock(tmp_path, clock=time).__enter__()
    assert time.now == 1


def test_a_heartbeat_comes_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.01)
    beats = types.SimpleNamespace(count=0)
    enough = lock.threading.Event()

    class Counting(RunLock):
        def beat(self) -> None:
            super().beat()
            beats.count += 1
            if beats.count == 3:
                enough.set()

    with Counting(tmp_path):
        assert enough.wait(30)
        with contextlib.closing((tmp_path / LOCK_NAME).open()) as file:
            assert int(file.read().splitlines()[1]) >= 2


def test_of_two_trainers_that_take_over_one_lock_only_one_gets_it(bucket, folder):
    dead = BucketLock(folder, owner=OTHER_HOST)
    dead.create()
    first, second = BucketLock(folder), BucketLock(folder)
    first_saw, second_saw = first.look(), second.look()
    first.remove(first_saw)
    assert first.create()
    second.remove(second_saw)
    assert not second.create()
    first.check()


def test_a_store_that_refuses_is_an_oserror_with_the_name_of_the_lock(bucket, folder):
    bucket.full = True
    with pytest.raises(UserError, match=r"^--workdir gs://bucket/run: it cannot be written: .*403"):
        BucketLock(folder).__enter__()
