"""Supervises one worker: python -m tests.run.one_supervisor HOST:PORT I N FOLDER PROGRAM [SIGNAL ...]

The worker is a Python program that knows the folder as `folder`. The signals are ignored.
"""

import pathlib
import signal
import sys

from gshard_nmt.cli.flags import Command
from gshard_nmt.cli.runner import run
from gshard_nmt.run import supervisor
from gshard_nmt.run.deaths import Cgroups
from gshard_nmt.spmd.processes import Processes


def main(coordinator: str, index: str, count: str, folder: str, code: str, *ignored: str) -> int:
    """Prints the message and returns the exit code of gshard-train."""
    for name in ignored:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    supervisor._GRACE_SECONDS, supervisor._NEWS_SECONDS = 0.3, 2.0
    path = pathlib.Path(folder)
    setup = f"import os, pathlib, signal, sys, time; folder = pathlib.Path({folder!r})\n"
    worker = [sys.executable, "-c", setup + code]
    cgroups = Cgroups(path / "membership", path)

    def action(values: object) -> None:
        processes = Processes(coordinator, int(count), int(index), 10)
        sys.exit(supervisor.supervise(processes, worker, path, {}, cgroups))

    return run(Command("gshard-train", "", "", (), lambda flags: None, action), [])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
