"""Failures that the user can mend have a message; defects of the program have none."""

import errno
import gzip
import os

import pytest

from gshard_nmt.cli.failures import user_message
from gshard_nmt.errors import UserError


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "Give another file or folder, or change its permissions."),
        (errno.EROFS, "Give another file or folder, or change its permissions."),
        (errno.ENOSPC, "Free some space, or give a place on another disk."),
        (
            errno.EFBIG,
            "Raise the limit of file sizes (ulimit -f), or give a place on another disk.",
        ),
        (errno.EISDIR, "It is a folder; give a file."),
        (errno.ENOTDIR, "A part of this path is a file; give a folder."),
        (errno.EEXIST, "Give a new name, or remove the file or folder that has this name."),
        (
            errno.ELOOP,
            "Its symbolic links form a loop; give the path of the file or folder itself.",
        ),
        (errno.EMFILE, "Raise the limit of open files, for instance with ulimit -n 65536."),
        (
            errno.ESTALE,
            "The disk or the file server has failed; try again when it works.",
        ),
        (errno.ENXIO, "Give another file or folder."),
    ],
)
def test_an_error_of_the_system_names_the_file_and_says_what_to_do(number, advice):
    error = OSError(number, os.strerror(number), "/a/b")
    assert user_message(error).startswith(f"/a/b: {os.strerror(number)}. {advice}")


def test_an_error_with_two_files_names_both():
    error = OSError(errno.EXDEV, "Invalid cross-device link", b"/a", None, "/b")
    assert user_message(error).startswith(
        "/a -> /b: Invalid cross-device link. It is on another disk"
    )


def test_a_full_disk_behind_an_open_file_has_no_name():
    assert user_message(OSError(errno.ENOSPC, "No space left on device")).startswith(
        "stdout, or a file that was being used: No space left on device. Free some space"
    )


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (UserError("no."), "no."),
        (MemoryError(), "out of memory: this machine has no more. Lower Data.rows to train, or "),
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.\nand more"),
            "out of memory: RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes. Lower Data.rows",
        ),
        (
            ValueError(
                "RESOURCE_EXHAUSTED: Error writing x [OS error 28: No space left on device]"
            ),
            "the disk is full: RESOURCE_EXHAUSTED: Error writing x [OS error 28: No space left on "
            "device]. Free some space",
        ),
        (
            RuntimeError("cannot open x: Too many open files"),
            "too many files are open: cannot open x",
        ),
        (RuntimeError("write failed: File too large"), "a file is too large: write failed"),
    ],
)
def test_what_a_library_reports_in_words_has_a_message(error, start):
    assert user_message(error).startswith(start)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bug"),
        KeyError("x"),
        OSError("?"),
        FileNotFoundError(2, "gone"),
        ConnectionRefusedError(111, "refused"),
        gzip.BadGzipFile("Not a gzipped file"),
    ],
)
def test_a_defect_has_no_message(error):
    assert user_message(error) is None
