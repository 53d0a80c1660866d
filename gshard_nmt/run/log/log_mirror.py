"""The logs of a run folder that is in a bucket.

An object of a bucket cannot grow. So the logs are written to a temporary folder of this machine. Files
that have changed are copied to the bucket once a minute, before each checkpoint, and at the end.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gshard_nmt import files, paths

_UPLOAD_SECONDS = 60.0


class LogMirror:
    """A folder of this machine for logs, and its copy in the run folder.

    If the run folder is not in a bucket, the folder is the run folder itself, and nothing is copied.

    Attributes:
      folder: the folder to write the logs to.
    """

    def __init__(
        self, run_folder: Path, names: tuple[str, ...], say: Callable[[str], None]
    ) -> None:
        """Copies the logs of an earlier start to this machine.

        Args:
          run_folder: the run folder.
          names: the logs that continue the files in the run folder. All other logs are new files.
          say: shows a line if the bucket cannot be written.

        Raises:
          OSError: an earlier log cannot be read.
        """
        self.folder = run_folder
        self._target, self._say = run_folder, say
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if not paths.is_url(run_folder):
            return
        self._temporary = tempfile.TemporaryDirectory(prefix="gshard-nmt-logs-")
        self.folder = Path(self._temporary.name)
        self._copied: dict[Path, tuple[int, int]] = {}
        self._next_upload = time.monotonic() + _UPLOAD_SECONDS
        self._failed = False
        for name in names:
            if (run_folder / name).exists():
                (self.folder / name).write_bytes((run_folder / name).read_bytes())

    def upload(self, at_once: bool = False) -> None:
        """Copies changed files to the bucket, if a minute has passed or `at_once` is set.

        A log that cannot be written ends no run. The next call tries again.
        """
        if self._temporary is None or not (at_once or time.monotonic() >= self._next_upload):
            return
        self._next_upload = time.monotonic() + _UPLOAD_SECONDS
        try:
            self._upload()
            self._failed = False
        except OSError as error:
            if not self._failed:
                reason = error.strerror or error
                self._say(
                    f"the logs cannot be copied to {self._target}: {reason}. Training goes on"
                )
            self._failed = True

    def close(self) -> None:
        """Copies changed files, and removes the temporary folder."""
        self.upload(at_once=True)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _upload(self) -> None:
        for file in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            status = file.stat()
            state = (status.st_size, status.st_mtime_ns)
            if self._copied.get(file) != state:
                files.write(self._target / file.relative_to(self.folder), file.read_bytes())
                self._copied[file] = state
