"""The lock of a run folder in a bucket: who is refused, and whose lock is taken over."""

import dataclasses

import pytest

from gshard_nmt import paths
from gshard_nmt.errors import UserError
from gshard_nmt.run.bucket_lock import BucketLock, run_lock
from gshard_nmt.run.lock import LOCK_NAME, Owner, RunLock
from tests.run.fake_time import FakeTime

OTHER_HOST = dataclasses.replace(
    Owner.this_process(), host="other-host", pid=7, boot="another boot", token="theirs"
)
LOCK = f"bucket/run/{LOCK_NAME}"


@pytest.fixture
def folder(bucket):
    return paths.folder_path("workdir", "gs://bucket/run")


def test_the_kind_of_the_lock_is_that_of_the_folder(folder, tmp_path):
    assert type(run_lock(folder)) is BucketLock
    assert type(run_lock(tmp_path)) is RunLock


def test_a_second_trainer_is_refused_and_a_third_starts_after_the_first(bucket, folder):
    with BucketLock(folder) as held:
        held.check()
        with pytest.raises(UserError, match="is in use: process"), BucketLock(folder):
            pass
        held.check()
    assert bucket.read(LOCK)[0] == b""
    with BucketLock(folder) as held:
        held.check()


def test_a_lock_of_another_machine_without_heartbeat_is_taken_over(bucket, folder):
    BucketLock(folder, owner=OTHER_HOST)._create()
    time, lines = FakeTime(), []
    with BucketLock(folder, say=lines.append, clock=time.clock) as held:
        held.check()
    assert 60 <= time.now < 62
    assert lines == [
        "gs://bucket/run is locked by process 7 on other-host; waiting 60 s for a sign that it is still "
        "alive"
    ]


def test_a_lock_of_another_machine_with_a_heartbeat_is_not(bucket, folder):
    theirs = BucketLock(folder, owner=OTHER_HOST)
    theirs._create()
    time = FakeTime(theirs.beat)
    with (
        pytest.raises(UserError, match="is in use: process 7 on other-host trains in it since"),
        BucketLock(folder, clock=time.clock),
    ):
        pass
    theirs.check()


def test_a_trainer_that_lost_its_lock_notices_it_and_does_not_free_that_of_the_other(
    bucket, folder
):
    with BucketLock(folder, clock=FakeTime().clock) as held:
        bucket.remove(LOCK)
        BucketLock(folder, owner=OTHER_HOST)._create()
        with pytest.raises(UserError, match="process 7 on other-host took it over"):
            held.check()
        held.beat()
    assert b"other-host" in bucket.read(LOCK)[0]


def test_of_two_trainers_that_take_over_one_lock_only_one_gets_it(bucket, folder):
    dead = BucketLock(folder, owner=OTHER_HOST)
    dead._create()
    first, second = BucketLock(folder), BucketLock(folder)
    first_saw, second_saw = first._look(), second._look()
    first._remove(first_saw)
    assert first._create()
    second._remove(second_saw)
    assert not second._create()
    first.check()


def test_a_store_that_refuses_is_an_oserror_with_the_name_of_the_lock(bucket, folder):
    bucket.full = True
    with pytest.raises(UserError, match=r"^--workdir gs://bucket/run: it cannot be written: .*403"):
        BucketLock(folder).__enter__()
