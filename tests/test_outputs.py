"""Outputs that a user names: mistakes are errors before the work, and the old content is never lost."""

import os
import pathlib
import stat

import pytest

from gshard_nmt import outputs, paths
from gshard_nmt.errors import UserError


@pytest.mark.parametrize("name", ["new", "new/a/b", "there", "."])
def test_a_folder_that_can_be_made_is_left_as_it_was(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / name, tmp_path.__class__(name)):
        outputs.check_folder("--out", folder)
    assert sorted(os.listdir(tmp_path)) == ["there"]
    assert os.listdir(tmp_path / "there") == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file", "/file is not a folder. Give the path of another folder."),
        ("file/below/it", "/file is not a folder. Give the path of another folder."),
        ("/proc/x", "No such file or directory. Give another folder, or change the permissions."),
    ],
)
def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, name, words):
    (tmp_path / "file").write_text("content")
    folder = tmp_path / name
    with pytest.raises(UserError) as error:
        outputs.check_folder("--out", folder)
    assert str(error.value).startswith(f"--out {folder}: ")
    assert words in str(error.value)
    assert (tmp_path / "file").read_text() == "content"


def test_a_server_that_is_away_is_no_mistake_of_the_user(monkeypatch):
    monkeypatch.setattr(outputs, "AWAY", (2,))  # the error of /proc/x
    for check in (outputs.check_folder, outputs.check_file):
        with pytest.raises(FileNotFoundError):
            check("--out", pathlib.Path("/proc/x"))


def test_a_mount_point_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path)
    with pytest.raises(UserError) as error:
        outputs.check_folder("--out", tmp_path, replaced=True)
    assert str(error.value) == (
        f"--out {tmp_path}: it is a mount point, which cannot be replaced. Give a folder in it, such as "
        f"{tmp_path}/new."
    )
    outputs.check_folder("--out", tmp_path)
    outputs.check_folder("--out", tmp_path / "new", replaced=True)


@pytest.mark.parametrize("had_one", [False, True])
@pytest.mark.parametrize("moment", ["writing", "between the renames"])
def test_what_a_killed_program_left_is_removed_by_the_next_one(tmp_path, moment, had_one):
    out, is_between = tmp_path / "out", moment == "between the renames"
    if had_one:
        out.mkdir()
        (out / "old").touch()
    left = tmp_path / ".gshard-nmt-out"
    (left / "new").mkdir(parents=True)
    (left / "new" / "much").write_text("text")
    (tmp_path / ".gshard-nmt-out.lock").touch()
    (tmp_path / ".gshard-nmt-other").mkdir()
    if is_between and had_one:
        out.rename(left / "new.replaced")
    with pytest.raises(ValueError, match="no"), outputs.new_folder(out):
        raise ValueError("no")
    assert sorted(os.listdir(tmp_path)) == [".gshard-nmt-other", *["out"] * had_one]
    with outputs.new_folder(out) as folder:
        (folder / "new").touch()
    assert os.listdir(out) == ["new"]
    assert sorted(os.listdir(tmp_path)) == [".gshard-nmt-other", "out"]


@pytest.mark.parametrize("renamed", [1, 2])
def test_an_interruption_between_two_renames_loses_no_folder(tmp_path, monkeypatch, renamed):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    usual, calls = pathlib.Path.replace, []

    def replace(path, target):
        usual(path, target)
        calls.append(path)
        if len(calls) == renamed:
            raise KeyboardInterrupt

    monkeypatch.setattr(pathlib.Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt), outputs.new_folder(tmp_path / "out") as folder:
        (folder / "new").touch()
    assert os.listdir(tmp_path / "out") == ["old" if renamed == 1 else "new"]
    assert os.listdir(tmp_path) == ["out"]


def test_two_programs_do_not_write_the_same_output(tmp_path):
    with outputs.new_folder(tmp_path / "out") as folder, outputs.text_file(tmp_path / "x") as file:
        (folder / "first").touch()
        file.write("of the first\n")
        file.flush()
        for again in (outputs.new_folder(tmp_path / "out"), outputs.text_file(tmp_path / "x")):
            with pytest.raises(UserError, match=r"^another program has locked .*Wait until"), again:
                pass
    with pytest.raises(UserError, match=r"^--out .*out is not empty"):  # made since it was checked
        outputs.new_folder(tmp_path / "out", "--out").__enter__()
    assert os.listdir(tmp_path / "out") == ["first"]
    assert (tmp_path / "x").read_text() == "of the first\n"
    assert sorted(os.listdir(tmp_path)) == ["out", "x"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "it is a folder. Give the path of a file."),
        ("gone/x", "the folder .*gone does not exist. Make it first, or give another."),
        ("file/x", "the folder .*file is not a folder. Make it first, or give another."),
        ("/proc/x", "it cannot be written: No such file or directory. Give another file, or"),
    ],
)
def test_a_file_that_cannot_be_written_is_an_error(tmp_path, name, words):
    (tmp_path / "file").write_text("content")
    with pytest.raises(UserError, match=f"^--output {tmp_path / name}: {words}"):
        outputs.check_file("--output", tmp_path / name)
    assert (tmp_path / "file").read_text() == "content"


def test_the_new_text_takes_the_place_of_the_old_one_at_the_end(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o640)
    with outputs.text_file(path) as file:
        file.write("é\n")
        file.flush()
        assert path.read_text() == "old"
        assert (tmp_path / "x.partial").read_text(encoding="utf-8") == "é\n"
    assert path.read_text(encoding="utf-8") == "é\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["x"]


def test_a_folder_is_replaced_and_a_link_to_it_stays(tmp_path):
    for number in (1, 2):
        (tmp_path / "work").mkdir(exist_ok=True)
        (tmp_path / "work" / "new").mkdir()
        (tmp_path / "work" / "new" / "content").write_text(str(number))
        outputs.replace_folder(
            tmp_path / "work" / "new", tmp_path / ("old" if number == 1 else "link")
        )
        if number == 1:
            (tmp_path / "link").symlink_to("old")
    assert (tmp_path / "old" / "content").read_text() == "2"
    assert (tmp_path / "link").is_symlink()
    assert os.listdir(tmp_path / "work") == []


def test_a_file_of_the_user_is_named_before_its_folder_is_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "ours").write_text("")
    outputs.check_only_has("--out", tmp_path, {"a/ours", "a/gone"}, "the program")
    (tmp_path / "a" / "notes").write_text("years of work")
    with pytest.raises(UserError) as error:
        outputs.check_only_has("--out", tmp_path, {"a/ours"}, "the program")
    assert str(error.value) == (
        f"--out {tmp_path} would be replaced, but a/notes in it is not from the program. Move that file "
        "away, or choose another folder."
    )


def test_a_folder_in_a_bucket_is_checked_by_writing_to_it(bucket):
    folder = paths.folder_path("workdir", "gs://bucket/run")
    outputs.check_folder("--workdir", folder)
    assert not bucket.names()
    bucket.write("bucket/run", b"a file")
    with pytest.raises(UserError, match=r"^--workdir gs://bucket/run: it is not a folder\. Give"):
        outputs.check_folder("--workdir", folder)
    bucket.remove("bucket/run")
    bucket.full = True
    with pytest.raises(UserError, match=r"gs://bucket/run cannot be reached: .*may not wr"):
        outputs.check_folder("--workdir", folder)
