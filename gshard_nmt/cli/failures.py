"""The messages for failures that only the user can mend, such as a full disk.

All other exceptions are defects of the program. They keep their traceback.
"""

import errno

from gshard_nmt.errors import UserError

_NO_SPACE = "Free some space, or give a place on another disk."
_PERMISSION = "Give another file or folder, or change its permissions."
_TRY_AGAIN = "The disk or the file server has failed; try again when it works."
_OPEN_FILES = "Raise the limit of open files, for instance with ulimit -n 65536."

_ADVICE = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _PERMISSION,
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f), or give a place on another disk.",
    errno.ENAMETOOLONG: "Give a shorter name.",
    errno.ENOENT: "Give a file or folder that exists.",
    errno.EEXIST: "Give a new name, or remove the file or folder that has this name.",
    errno.ENOTDIR: "A part of this path is a file; give a folder.",
    errno.EISDIR: "It is a folder; give a file.",
    errno.ENOTEMPTY: "Give an empty folder, or the name of a new one.",
    errno.ELOOP: "Its symbolic links form a loop; give the path of the file or folder itself.",
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.EBUSY: "Another program uses it, or it is a mount point; give another folder.",
    errno.EXDEV: "It is on another disk; give a folder on the same disk.",
}
"""What the user can do about each error of the operating system."""

AWAY = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENOTCONN, errno.EREMOTEIO)
"""Errors of a disk or a file server that may pass by themselves."""

_ALWAYS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EIO),
    *(errno.ESTALE, errno.EROFS, errno.EACCES, errno.ENAMETOOLONG),
)
"""Errors that only the user can mend, even if the exception names no file."""

_MEMORY = (
    "out of memory: {what}. Lower Data.rows to train, or Decode.rows and --beam to decode; make the "
    "model smaller, or give the mesh more devices. gshard-inspect shows the memory of a step."
)


def user_message(error: Exception) -> str | None:
    """Returns the message for a failure that the user can mend; None for a defect of the program."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return f"the input is not UTF-8 ({error.reason}). Convert it, for instance with iconv."
    if isinstance(error, MemoryError):
        return _MEMORY.format(what=_first_line(error) or "this machine has no more")
    if isinstance(error, OSError):
        return _system_message(error)
    return _library_message(error)


def _system_message(error: OSError) -> str | None:
    """Returns the message for an error of the operating system."""
    if error.errno is None or (error.filename is None and error.errno not in _ALWAYS):
        return None
    # An error while reading or writing an open file, such as stdout, does not name the file.
    file = error.filename if error.filename is not None else "stdout, or a file that was being used"
    if isinstance(file, bytes):
        file = file.decode(errors="backslashreplace")
    if error.filename2 is not None:
        file = f"{file} -> {error.filename2}"
    default = _TRY_AGAIN if error.errno in AWAY else "Give another file or folder."
    advice = _ADVICE.get(error.errno, default)
    return f"{file}: {error.strerror}. {advice}"


def _library_message(error: Exception) -> str | None:
    """Returns the message for a failure that a library reports in words only.

    XLA, TensorFlow and tensorstore have exceptions of several types for them.
    """
    text = str(error)
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return f"the disk is full: {_first_line(error)}. {_NO_SPACE}"
    if "File too large" in text:
        return f"a file is too large: {_first_line(error)}. {_ADVICE[errno.EFBIG]}"
    if "Too many open files" in text:
        return f"too many files are open: {_first_line(error)}. {_OPEN_FILES}"
    if "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return _MEMORY.format(what=_first_line(error))
    return None


def _first_line(error: Exception) -> str:
    """Returns the first line of an error's message, at most 300 characters, without a full stop."""
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(".") if lines else ""
