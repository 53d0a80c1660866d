"""What the tests of rendezvous and supervisors share: processes of a run without its training."""

import contextlib
import dataclasses
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

import pytest

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.run.rendezvous import rendezvous
from gshard_nmt.spmd.processes import Processes

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def coordinator() -> str:
    """Returns the address of a free port of the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def meet(
    processes: Sequence[Processes], identities: Sequence[Mapping[str, str]] = ()
) -> list[BaseException | None]:
    """Runs the rendezvous of all processes at once, and returns the error of each.

    All connections stay open until each has ended.
    """
    errors: list[BaseException | None] = [None] * len(processes)
    everyone = contextlib.ExitStack()

    def target(place: int) -> None:
        try:
            identity = identities[place] if identities else {}
            everyone.enter_context(rendezvous(processes[place], identity))
        except (TryAgain, UserError) as error:
            errors[place] = error

    threads = [threading.Thread(target=target, args=(place,)) for place in range(len(processes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    everyone.close()
    return errors


@dataclasses.dataclass
class Supervised:
    """A run of two processes whose workers are short Python programs.

    Attributes:
      coordinator: the address of process 0.
      folder: the run folder, which also holds a faked cgroup file.
    """

    coordinator: str
    folder: pathlib.Path

    def start(self, *workers: str, ignoring: Sequence[str] = ()) -> list["subprocess.Popen[str]"]:
        """Starts a supervisor for each worker, as gshard-train does.

        Args:
          *workers: the program of each worker. It knows the run folder as `folder`.
          ignoring: names of signals that the supervisors ignore from the start.
        """
        program = [sys.executable, "-m", "tests.run.one_supervisor", self.coordinator]
        count, folder = str(len(workers)), str(self.folder)
        return [
            subprocess.Popen(
                [*program, str(index), count, folder, worker, *ignoring],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for index, worker in enumerate(workers)
        ]

    def run(self, *workers: str) -> list[tuple[int, str]]:
        """Returns the exit code and stderr of each supervisor."""
        return ends(self.start(*workers))


def ends(
    supervisors: Sequence["subprocess.Popen[str]"], timeout: float = 60
) -> list[tuple[int, str]]:
    """Waits for supervisors; returns the exit code and stderr of each."""
    try:
        texts = [supervisor.communicate(timeout=timeout)[1] for supervisor in supervisors]
    finally:
        for supervisor in supervisors:
            supervisor.kill()
    return [(s.returncode, text) for s, text in zip(supervisors, texts, strict=True)]


@pytest.fixture
def supervised(coordinator, tmp_path) -> Supervised:
    """Returns a run of two processes; the run folder has been claimed."""
    (tmp_path / "data.json").write_text("{}")
    (tmp_path / "membership").write_text("0::/job\n")
    (tmp_path / "memory.events").write_text("oom 0\noom_kill 3\n")
    return Supervised(coordinator, tmp_path)
