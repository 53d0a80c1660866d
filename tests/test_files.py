import os
import stat
import threading

import pytest

from gshard_nmt import files
from gshard_nmt.errors import UserError


def test_a_file_is_replaced_and_nothing_stays_beside_it(tmp_path):
    file = tmp_path / "a.json"
    files.write(file, "old")
    before = file.stat().st_ino
    files.write(file, b"new")
    assert file.read_bytes() == b"new"
    assert file.stat().st_ino != before
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
    files.check_writable(link if through_a_link else pipe)
    files.write(link if through_a_link else pipe, "content")
    reader.join(10)
    assert read == ["content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


def test_a_failed_write_leaves_no_temporary_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write(tmp_path / "folder", "x")
    with pytest.raises(FileNotFoundError):
        files.write(tmp_path / "gone" / "a.json", "x")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_check_raises_as_writing_does_and_changes_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.json").write_text("old")
    files.check_writable(tmp_path / "a.json")
    files.check_writable(tmp_path / "new.json")
    for wrong in (tmp_path / "folder", tmp_path / "gone" / "a.json"):
        with pytest.raises(OSError, match=str(wrong.name)):
            files.check_writable(wrong)
    assert sorted(os.listdir(tmp_path)) == ["a.json", "folder"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_a_failure_is_reported_with_the_flag(tmp_path):
    with (
        pytest.raises(UserError, match=r"^--json x\.json: it cannot be written: No space left"),
        files.reported_as("--json x.json"),
    ):
        raise OSError(28, "No space left on device")
