"""A partial file: whenever the program was killed, the same command makes the same file."""

import os
import stat
import subprocess
import sys

import pytest

from gshard_nmt import outputs
from gshard_nmt.decoding.resumable_file import ResumableFile, progress_file
from gshard_nmt.errors import UserError

MADE_OF = {"input": "a", "checkpoint": "b"}


def write(path, lines, first=0, made_of=MADE_OF):
    """Writes and commits lines one by one, from the first that the file does not have."""
    with ResumableFile(path, made_of) as file:
        assert file.lines == first
        for number, line in enumerate(lines[first:], first + 1):
            file.write(line)
            file.commit(number)
            if line.startswith("stop"):
                file.write("not committed\n")
                raise RuntimeError


def interrupt(path, lines):
    """Leaves a file whose lines up to "stop" are committed."""
    with pytest.raises(RuntimeError) as error:
        write(path, lines)
    return error.value


def test_killed_at_any_place_and_started_again_every_line_is_right(tmp_path):
    words = [sys.executable, "-m", "tests.decoding.killed_decoding", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    places, resumed = map(int, done.stdout.split())
    # Five chunks: each is a write, a record and two syncs. Most kills leave lines to go on from.
    assert places > 20
    assert resumed > places / 2


def test_the_output_appears_at_the_end_with_the_permissions_of_the_old_one(tmp_path):
    path, link = tmp_path / "x", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to("x")
    with ResumableFile(link, MADE_OF) as file:
        file.write("é\n")
        file.commit(1)
        assert path.read_text() == "old"
        assert (tmp_path / "x.partial").read_text(encoding="utf-8") == "é\n"
    assert path.read_text(encoding="utf-8") == "é\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link", "x"]


def test_after_an_error_without_a_line_nothing_is_left(tmp_path):
    file = ResumableFile(tmp_path / "x", MADE_OF)
    file.__enter__()
    file.write("torn")
    error = RuntimeError()
    file.__exit__(RuntimeError, error, None)
    assert os.listdir(tmp_path) == []
    assert not hasattr(error, "__notes__")


def append(file, text):
    with file.open("a") as content:
        content.write(text)


@pytest.mark.parametrize(
    ("damage", "made_of", "words"),
    [
        ({}, {"input": "c", "checkpoint": "d"}, "was made with another input, checkpoint"),
        ({}, {"input": MADE_OF["input"]}, "was made with another checkpoint"),
        ({"": "One\nstop\n"}, MADE_OF, "has been changed or damaged"),
        ({"": "one\n"}, MADE_OF, "has been changed or damaged"),
        ({".progress": ""}, MADE_OF, "has no record of its lines"),
        ({".progress": '{"format": "gshard-decode 9"}\n'}, MADE_OF, "has no record of its lines"),
    ],
)
def test_lines_that_were_made_of_something_else_are_made_anew(
    tmp_path, capsys, damage, made_of, words
):
    path = tmp_path / "x"
    interrupt(path, ["one\n", "stop\n"])
    for ending, content in damage.items():
        (tmp_path / f"x.partial{ending}").write_text(content)
    write(path, ["1\n", "2\n"], made_of=made_of)
    assert capsys.readouterr().err == f"{path}.partial {words}; starting anew\n"
    assert path.read_text() == "1\n2\n"
    assert os.listdir(tmp_path) == ["x"]


def test_torn_lines_of_the_text_and_of_the_record_are_removed(tmp_path):
    path = tmp_path / "x"
    lines = ["one\n", "stop\n", "three\n", "stop 4\n", "five\n"]
    interrupt(path, lines)
    append(tmp_path / "x.partial", "torn")
    append(progress_file(path), '{"lines": 7')
    with pytest.raises(RuntimeError):
        write(path, lines, first=2)
    write(path, lines, first=4)
    assert path.read_text() == "".join(lines)


def test_the_text_is_on_the_disk_before_its_record_is(tmp_path, monkeypatch):
    events = []
    real = os.write

    def name(descriptor):
        return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))

    def spy(descriptor, content):
        events.append(("write", name(descriptor)))
        return real(descriptor, content)

    monkeypatch.setattr(os, "write", spy)
    monkeypatch.setattr(os, "fsync", lambda descriptor: events.append(("sync", name(descriptor))))
    with ResumableFile(tmp_path / "x", MADE_OF) as file:
        file.write("a\n")
        events.clear()
        file.commit(1)
    text, record = "x.partial", "x.partial.progress"
    assert events == [("write", text), ("sync", text), ("write", record), ("sync", record)]


def test_a_full_disk_names_the_partial_file(tmp_path, monkeypatch):
    write, room = os.write, [0, 0]

    def full(descriptor, content):
        if not room[0]:
            raise OSError(28, "No space left on device")
        room[0] -= 1
        return write(descriptor, content)

    with ResumableFile(tmp_path / "x", MADE_OF) as file:
        for room[0], name in ((0, "x.partial"), (1, "x.partial.progress")):
            file.write("a\n")
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", full)
                with pytest.raises(OSError, match=name) as error:
                    file.commit(1)
            # Only lines with a record are done.
            assert (file.lines, error.value.filename) == (0, str(tmp_path / name))


def test_two_programs_do_not_write_the_same_output(tmp_path):
    path = tmp_path / "x"
    with ResumableFile(path, MADE_OF) as file:
        file.write("a\n")
        file.commit(1)
        with pytest.raises(UserError) as error, ResumableFile(path, MADE_OF):
            pass
        assert (tmp_path / "x.partial").read_text() == "a\n"
    assert str(error.value) == (
        f"another program has locked {path}.partial. Wait until it has finished, or write to another "
        "place."
    )
    assert path.read_text() == "a\n"


def test_an_output_that_another_program_finishes_meanwhile_is_not_emptied(tmp_path, monkeypatch):
    """The other program holds the lock until its partial file has become the output."""
    path, partial = tmp_path / "x", tmp_path / "x.partial"
    partial.write_text("of the other program")

    def finish_first(descriptor, operation):
        if partial.exists() and not path.exists():
            partial.rename(path)

    monkeypatch.setattr(outputs.fcntl, "flock", finish_first)
    file = ResumableFile(path, MADE_OF)
    file.__enter__()
    file.__exit__(RuntimeError, RuntimeError(), None)
    assert path.read_text() == "of the other program"
