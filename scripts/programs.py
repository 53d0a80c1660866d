"""Runs the programs of the package, one by one or side by side. If they are stopped, they may save."""

import contextlib
import dataclasses
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from gshard_nmt.run.together import stop_signals


@dataclasses.dataclass(frozen=True)
class Job:
    """A program to run.

    Attributes:
      command: its name and its flags, such as ("gshard-train", "--config", "demo").
      log: the file that gets its output; None leaves the output on the terminal.
    """

    command: Sequence[str | Path]
    log: Path | None = None


def run(jobs: Iterable[Job], at_a_time: int = 1) -> list[int]:
    """Runs programs, and returns their exit codes in the order of the jobs."""
    waiting, codes = enumerate(jobs), dict[int, int]()
    running: dict[int, tuple[Job, subprocess.Popen]] = {}
    with _stop_signals_interrupt():
        try:
            while True:
                while len(running) < at_a_time and (following := next(waiting, None)):
                    running[following[0]] = following[1], _start(following[1])
                if not running:
                    return [codes[number] for number in sorted(codes)]
                time.sleep(0.05)
                for number, (job, process) in list(running.items()):
                    if process.poll() is not None:
                        codes[number] = process.returncode
                        del running[number]
                        _say_end(job, process.returncode)
        except BaseException:
            _stop([process for _, process in running.values()])
            raise


def _start(job: Job) -> subprocess.Popen:
    text = shlex.join(map(str, job.command))
    print(f"\n$ {text}{f' > {job.log}' if job.log else ''}", flush=True)
    program, *flags = map(str, job.command)
    with _output(job.log) as output:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / program), *flags], stdout=output, stderr=output
        )


@contextlib.contextmanager
def _output(log: Path | None) -> Iterator[IO | None]:
    if log is None:
        yield None
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        yield file


def _say_end(job: Job, code: int) -> None:
    if job.log:
        lines = job.log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), "")
        print(f"{job.log.stem} ended with exit code {code}: {last}", flush=True)


def _stop(processes: Sequence[subprocess.Popen]) -> None:
    for process in processes:
        process.terminate()
    while any(process.poll() is None for process in processes):
        # A second Ctrl-C reaches the programs, which then end at once.
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0.05)


@contextlib.contextmanager
def _stop_signals_interrupt() -> Iterator[None]:
    before = {
        number: signal.signal(number, signal.default_int_handler) for number in stop_signals()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
