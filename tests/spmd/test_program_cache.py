"""The cache of programs: the folder of the user, what is removed from it, and damaged entries."""

import os
import stat
import time
import warnings
import zlib

import pytest

from gshard_nmt.spmd import program_cache


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home folder of a user without any cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return tmp_path


def test_the_cache_of_the_user_is_in_the_home_folder_and_private(home):
    folder = program_cache.user_cache()
    assert folder == home / ".cache" / "gshard-nmt" / "programs"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert program_cache.user_cache() == folder


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


def entry(folder, name: str, size: int, days: float) -> None:
    """Makes a file that was used last some days ago."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    used = time.time() - days * 86400
    os.utime(path, (used, used))


def test_old_files_are_removed_and_then_the_oldest_until_the_rest_fits(tmp_path):
    for name, size, days in (("a", 10, 99), ("b", 10, 5), ("xla/c", 50, 4), ("d", 30, 1)):
        entry(tmp_path, name, size, days)
    program_cache.prune(tmp_path, most_bytes=100, days=60)
    left = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert left == {"b", "xla/c", "d"}
    program_cache.prune(tmp_path, most_bytes=80, days=60)
    assert not (tmp_path / "b").exists()
    program_cache.prune(tmp_path, most_bytes=40, days=60)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["d"]


def test_damaged_compiled_programs_are_removed_when_jax_meets_one(tmp_path):
    folder = program_cache.xla_folder(tmp_path)
    folder.mkdir()
    whole = zlib.compress(os.urandom(1000))
    contents = {"a-cache": whole, "b-cache": whole[:-9], "c-cache": b"", "d-atime": b"x"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with program_cache.mended(tmp_path):
        pass
    assert len(list(folder.iterdir())) == 4
    with program_cache.mended(tmp_path):
        warnings.warn("Error reading persistent compilation cache entry for 'f': x", stacklevel=1)
    assert sorted(path.name for path in folder.iterdir()) == ["a-cache", "d-atime"]
