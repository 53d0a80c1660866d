"""An output file that a killed program goes on with: OUTPUT.partial, and a record of what it holds.

`OUTPUT.partial.progress` has a line of JSON that says what the output is made of, and a line after each
commit: the number of input lines that are done, and the length and SHA-256 of the partial file. The text
is on the disk before its line is. So the last whole line is true, whenever the program was killed.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from gshard_nmt import files, json_shape, outputs
from gshard_nmt.decoding.source_lines import InputChanged
from gshard_nmt.json_shape import fields, mapping_of, text, whole

_FORMAT = "gshard-decode 1"
_HEAD = fields({"format": text(), "made_of": mapping_of(text())})
_COMMIT = fields({"lines": whole(), "bytes": whole(), "sha256": text()})


def progress_file(output: Path) -> Path:
    """Returns the path of the record of a partial file."""
    partial = outputs.partial_path(output)
    return partial.with_name(f"{partial.name}.progress")


class ResumableFile:
    """A text file in UTF-8 that takes the place of a path when the `with` block ends without an error.

    After an error, and also after SIGKILL, the text that was committed is in the partial file. If the
    same output is begun again, it goes on there, after its first `lines` input lines.
    """

    def __init__(
        self, path: Path, made_of: Mapping[str, str], finished: Callable[[str], bytes] = str.encode
    ) -> None:
        """Opens nothing yet. The path keeps its content until the end.

        `made_of` is everything that the text depends on, by names that a user knows, such as "input". A
        partial file that was made of something else is begun anew, and stderr says so. `finished` makes
        the content of the path from the whole text.
        """
        self._finished = finished
        self.lines = 0
        self._path, self._made_of = path, dict(made_of)
        self._partial, self._progress = outputs.partial_path(path), progress_file(path)
        self._digest, self._bytes = hashlib.sha256(), 0
        self._waiting: list[str] = []
        self._until = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._text = self._until.enter_context(outputs.locked(self._partial))
        try:
            self._resume()
        except BaseException:
            self._until.close()
            raise
        return self

    def write(self, text: str) -> None:
        self._waiting.append(text)

    def commit(self, lines: int) -> None:
        """Writes the text and then the record of its lines; raises OSError if the disk fails."""
        content = "".join(self._waiting).encode()
        self._waiting.clear()
        with outputs.named(self._partial):
            _write(self._text, content)
            self._digest.update(content)
            self._bytes += len(content)
            os.fsync(self._text)
        digest = self._digest.hexdigest()
        self._append({"lines": lines, "bytes": self._bytes, "sha256": digest})
        self.lines = lines

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._until:
            if error is None and self._finished is not str.encode:
                files.write(self._path, self._finished(self._partial.read_text(encoding="utf-8")))
                self._partial.unlink()
                self._progress.unlink(missing_ok=True)
            elif error is None:
                if self._path.exists():
                    shutil.copymode(self._path, self._partial)
                self._partial.replace(os.path.realpath(self._path))
                self._progress.unlink(missing_ok=True)
            elif self.lines:
                then = "goes on from there"
                with contextlib.suppress(OSError):
                    os.ftruncate(self._text, self._bytes)
                if isinstance(error, InputChanged):
                    then = "starts anew, because they may be of the old input or of the new one"
                    # Without a record nobody goes on there, even if the old input comes back.
                    self._progress.unlink(missing_ok=True)
                error.add_note(
                    f"The first {self.lines:,} lines are done and in {self._partial}; the same command "
                    f"{then}. {self._path} is as before."
                )
            else:
                for file in (self._partial, self._progress):
                    with contextlib.suppress(OSError):
                        file.unlink()

    def _resume(self) -> None:
        """Finds the last commit and removes what was written after it; or begins anew, and says why."""
        made_of, commit, length = self._read_progress()
        names = {**self._made_of, **made_of}
        changed = [name for name in names if made_of.get(name) != self._made_of.get(name)]
        if commit is not None and not changed and self._has(commit):
            self.lines, self._bytes = commit["lines"], commit["bytes"]
            os.ftruncate(self._text, self._bytes)
            os.lseek(self._text, 0, os.SEEK_END)
            self._record_file = self._until.enter_context(
                outputs.opened(self._progress, os.O_APPEND)
            )
            os.ftruncate(self._record_file, length)
            sys.stderr.write(
                f"{self._partial} has the first {self.lines:,} lines; going on there\n"
            )
            return
        if os.fstat(self._text).st_size:
            why = "has been changed or damaged"
            if commit is None:
                why = "has no record of its lines"
            elif changed:
                why = f"was made with another {', '.join(changed)}"
            sys.stderr.write(f"{self._partial} {why}; starting anew\n")
        self._digest = hashlib.sha256()
        # A record that is older than the text must never be read with it, so it is emptied first.
        self._record_file = self._until.enter_context(outputs.opened(self._progress, os.O_TRUNC))
        os.fsync(self._record_file)
        os.ftruncate(self._text, 0)
        os.lseek(self._text, 0, os.SEEK_SET)
        self._append({"format": _FORMAT, "made_of": self._made_of})

    def _read_progress(self) -> tuple[Mapping[str, Any], dict[str, Any] | None, int]:
        """Returns what the partial file is made of, its last commit, and the length of the record to it.

        The commit is None if there is none.
        """
        made_of: Mapping[str, Any] = {}
        commit, length = None, 0
        with contextlib.suppress(OSError, ValueError):
            # The program may have been killed within the last line.
            *whole_lines, _ = self._progress.read_bytes().split(b"\n")
            for number, line in enumerate(whole_lines):
                if number:
                    commit = json_shape.parse(line, _COMMIT)
                elif (head := json_shape.parse(line, _HEAD))["format"] == _FORMAT:
                    made_of = head["made_of"]
                length += len(line) + 1
        return made_of, commit, length

    def _has(self, commit: Mapping[str, Any]) -> bool:
        """Returns whether the partial file begins with the text of a commit. It reads that text."""
        with self._partial.open("rb") as file:
            left = commit["bytes"]
            while left and (block := file.read(min(left, 1 << 20))):
                self._digest.update(block)
                left -= len(block)
        return not left and self._digest.hexdigest() == commit["sha256"]

    def _append(self, record: Mapping[str, Any]) -> None:
        with outputs.named(self._progress):
            _write(self._record_file, f"{json.dumps(record)}\n".encode())
            os.fsync(self._record_file)


def _write(descriptor: int, content: bytes) -> None:
    """Writes all bytes. Raises OSError if the disk is full."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
