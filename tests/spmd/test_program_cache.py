"""The cache of programs: the folder of the user, and what is removed from it."""

import os
import stat
import time

import pytest

from gshard_nmt.spmd import program_cache


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home folder of a user without any cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def test_the_cache_of_the_user_is_in_the_home_folder_and_private(home, monkeypatch):
    folder = program_cache.user_cache()
    assert folder == home / ".cache" / "gshard-nmt" / "programs"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert program_cache.user_cache() == folder
    monkeypatch.setattr(program_cache.os, "geteuid", lambda: os.getuid() + 1)
    assert program_cache.user_cache() is None


@pytest.mark.parametrize("part", ["gshard-nmt", "gshard-nmt/programs"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
def test_a_folder_that_others_can_write_to_is_not_used(home, part, mode):
    folder = home / ".cache" / part
    folder.mkdir(parents=True)
    folder.chmod(mode)
    assert program_cache.user_cache() is None


def test_without_a_home_folder_there_is_no_cache(home, monkeypatch):
    monkeypatch.setenv("HOME", "/proc/none")
    assert program_cache.user_cache() is None
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file"))
    assert program_cache.user_cache() is None

    def fail():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(program_cache.Path, "home", fail)
    assert program_cache.user_cache() is None


def test_a_cache_that_cannot_be_written_is_not_used(home, monkeypatch):
    assert program_cache.user_cache() is not None
    monkeypatch.setattr(program_cache.os, "access", lambda *_: False)
    assert program_cache.user_cache() is None


def test_files_that_were_not_used_for_some_days_are_removed(tmp_path):
    (tmp_path / "xla").mkdir()
    for name, days in (("a", 99), ("xla/b", 61), ("xla/c", 59), ("d", 1)):
        used = time.time() - days * 86400
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (used, used))
    program_cache.prune(tmp_path, days=60)
    left = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"xla/c", "d"}
