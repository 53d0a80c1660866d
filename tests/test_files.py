import os
import stat
import threading
from pathlib import Path

import pytest

from gshard_nmt import files, outputs


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path):
    file = tmp_path / "a.json"
    files.write(file, "old")
    file.chmod(0o640)
    before = file.stat().st_ino
    files.write(file, b"new")
    assert file.read_bytes() == b"new"
    assert file.stat().st_ino != before
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    file, link = tmp_path / "real" / "a.json", tmp_path / "link.json"
    link.symlink_to("real/a.json")
    for content in ("made through the link", "replaced through the link"):
        files.write(link, content)
        assert link.is_symlink()
        assert file.read_text() == content
    assert os.listdir(tmp_path / "real") == ["a.json"]


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_pipe_is_written_into_and_stays_a_pipe(tmp_path, through_a_link):
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    outputs.check_file("--out", link if through_a_link else pipe)
    files.write(link if through_a_link else pipe, "content")
    reader.join(10)
    assert read == ["content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_only_pipes_and_devices_are_streams():
    paths = map(Path, ("/dev/null", "/dev/new", "/dev/shm", "/dev/shm/new.json"))
    assert list(map(files.is_stream, paths)) == [True, True, True, False]


def test_a_failed_write_leaves_no_temporary_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write(tmp_path / "folder", "x")
    with pytest.raises(FileNotFoundError, match=r"gone/a\.json'$"):
        files.write(tmp_path / "gone" / "a.json", "x")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_server_that_is_away_is_no_mistake_of_the_user():
    with pytest.raises(OSError, match="Stale file handle"), files.reported_as("--json x"):
        raise OSError(116, "Stale file handle")


def test_the_data_is_on_the_disk_before_the_file_gets_its_name(tmp_path, monkeypatch):
    """A power cut loses what was not synchronized: neither an empty file nor a lost name may remain."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def record_sync(descriptor):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        calls.append("sync folder" if is_folder else f"sync {os.fstat(descriptor).st_size} bytes")
        fsync(descriptor)

    def record_replace(source, target, **options):
        calls.append("rename")
        replace(source, target, **options)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "replace", record_replace)
    files.write(tmp_path / "a.json", "twelve bytes")
    assert calls == ["sync 12 bytes", "rename", "sync folder"]


def test_a_planted_temporary_file_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda length: "guessed")
    (tmp_path / f"{files.TEMPORARY_PREFIX}guessed").symlink_to(victim)
    with pytest.raises(FileExistsError):
        files.write(tmp_path / "a.json", "new")
    assert victim.read_text() == "precious"
    assert not (tmp_path / "a.json").exists()
