"""Paths that users give, on this machine and in a bucket."""

import sys
from pathlib import Path

import pytest

from gshard_nmt import files, paths
from gshard_nmt.errors import UserError


def test_a_path_of_this_machine_stays_as_it_is(tmp_path):
    assert paths.folder_path("data", "a/b") == Path("a/b")
    assert paths.folder_path("data", f"file://{tmp_path}") == tmp_path
    assert paths.local_path("out", f"file://{tmp_path}") == tmp_path
    assert not paths.is_url(tmp_path)
    assert paths.absolute(Path("a")) == Path.cwd() / "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "s3://bucket/run",
            "--workdir s3://bucket/run: this kind of URL is unknown; a folder is a path of this machine "
            "or a URL gs://bucket/folder. Copy the data to one of these.",
        ),
        ("gs://bucket",
         "--workdir gs://bucket: the URL must name a bucket and a folder. Give gs://bucket/folder."),
        ("gs:///run",
         "--workdir gs:///run: the URL must name a bucket and a folder. Give gs://bucket/folder."),
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_used_is_answered_with_what_can(text, message):
    with pytest.raises(UserError) as raised:
        paths.folder_path("workdir", text)
    assert str(raised.value) == message


@pytest.mark.parametrize("module", ["gcsfs", "google.cloud.storage"])
def test_a_missing_package_is_named_with_how_to_install_it(bucket, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    words = rf"not installed \(.*{module}.*\)\. Install it: pip install 'gshard-nmt\[gcs\]'"
    with pytest.raises(UserError, match=words):
        paths.folder_path("data", "gs://b/d")


def test_a_url_has_the_methods_of_a_path(bucket):
    folder = paths.folder_path("workdir", "gs://bucket/runs/a/")
    assert str(folder) == "gs://bucket/runs/a"
    assert paths.is_url(folder)
    assert str(paths.absolute(folder / "x" / "y.json")) == "gs://bucket/runs/a/x/y.json"
    assert not folder.exists()
    files.write(folder / "x" / "y.json", "{}")
    files.write(folder / "z", b"12345")
    assert folder.is_dir()
    assert sorted(path.name for path in folder.iterdir()) == ["x", "z"]
    assert (folder / "x" / "y.json").read_text() == "{}"
    assert paths.sizes(folder, []) == {"x/y.json": 2, "z": 5}
    assert bucket.names() == ["bucket/runs/a/x/y.json", "bucket/runs/a/z"]


def test_the_sizes_of_the_files_of_a_local_folder(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y.json").write_text("{}")
    (tmp_path / "link").symlink_to("x")
    names = ["x/y.json", "link/y.json", "x/gone", "x/y.json/below"]
    assert paths.sizes(tmp_path, names) == {"x/y.json": 2, "link/y.json": 2}


def test_an_error_of_the_store_becomes_one_message(bucket):
    folder = paths.folder_path("data", "gs://bucket/d")
    with (
        pytest.raises(
            UserError, match=r"^--data gs://bucket/d cannot be reached: 403 no\. Check the"
        ),
        paths.reaching("data", folder),
    ):
        raise RuntimeError("403\n no")
    # An error of a local folder is not about a network.
    with pytest.raises(RuntimeError), paths.reaching("data", Path("d")):
        raise RuntimeError


def test_of_two_hosts_that_swap_one_wins(bucket):
    lock = paths.folder_path("workdir", "gs://bucket/run") / "lock"
    assert paths.swap(lock, b"first", None)
    assert not paths.swap(lock, b"second", None)
    assert lock.read_bytes() == b"first"
    assert not paths.swap(lock, b"second", b"something else")
    assert paths.swap(lock, b"second", b"first")
    assert lock.read_bytes() == b"second"


def test_a_host_that_comes_between_reading_and_writing_is_noticed(bucket, monkeypatch):
    lock = paths.folder_path("workdir", "gs://bucket/run") / "lock"
    write = bucket.write

    def interrupted(name, content, if_generation=None):
        write(name, b"of the other host")
        return write(name, content, if_generation)

    monkeypatch.setattr(bucket, "write", interrupted)
    assert not paths.swap(lock, b"mine", None)
    assert lock.read_bytes() == b"of the other host"


def test_a_write_that_the_store_refuses_raises_an_error_with_the_name(bucket):
    file = paths.folder_path("workdir", "gs://bucket/run") / "config.gin"
    files.write(file, "old")
    bucket.full = True
    with pytest.raises(PermissionError) as raised:
        files.write(file, "new")
    assert raised.value.filename == "gs://bucket/run/config.gin"
    assert file.read_text() == "old"
