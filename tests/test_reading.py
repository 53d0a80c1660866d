"""Reading from a disk that may fail."""

import pytest

from gshard_nmt import reading
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.reading import UnreadableError


def test_an_error_is_no_answer_to_whether_a_file_exists(tmp_path):
    (tmp_path / "file").touch()
    assert reading.exists(tmp_path / "file")
    assert not reading.exists(tmp_path / "nothing")
    below = tmp_path / "file" / "below"
    assert not reading.exists(below)
    with pytest.raises(FileNotFoundError, match="below"):
        reading.patiently_or_fail(below.read_bytes, below, "--data x")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    with pytest.raises(UnreadableError, match=r"^link cannot be read: Too many levels"):
        reading.exists(tmp_path / "link")


def test_a_failure_that_passes_is_not_seen(monkeypatch):
    waited = []
    monkeypatch.setattr(reading.time, "sleep", waited.append)
    answers = [UnreadableError("a"), UnreadableError("b"), UnreadableError("c")]

    def read() -> str:
        if answers:
            raise answers.pop(0)
        return "content"

    with pytest.raises(UnreadableError, match="c"):
        reading.patiently(read, (1, 2))
    assert waited == [1, 2]
    answers.append(UnreadableError("d"))
    assert reading.patiently(read, (3, 4)) == "content"
    assert waited == [1, 2, 3]


def test_nobody_waits_for_a_permission(tmp_path):
    calls = []

    def read() -> None:
        calls.append(1)
        with reading.reading(tmp_path / "file"):
            raise PermissionError(13, "Permission denied")

    with pytest.raises(UnreadableError) as error:
        reading.patiently(read, (1000,))
    assert len(calls) == 1
    failure = reading.failure(tmp_path, error.value)
    assert isinstance(failure, UserError)
    assert "file cannot be read: Permission denied. Give this user permission" in str(failure)
    assert isinstance(reading.failure(tmp_path, UnreadableError("x")), TryAgain)
