"""The clock of a race: trains one racer for a time, and notes its last checkpoint."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from racers.plan import Plan, Racer

POLL_SECONDS = 0.2
GRACE_SECONDS = 120.0
"""How long a racer may take to save its last checkpoint."""


class RacerFailed(Exception):
    """A racer cannot start, or its program failed."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What the clock has seen of a training run. All times are seconds since its start.

    The time of validations is left out, so that it costs a racer nothing.

    Attributes:
      updates: those of its last checkpoint; 0 if it saved none.
      reports: when the run reported a new number of updates, and that number.
      seconds: the length of the run.
      validation_seconds: what its validations took beside this.
    """

    updates: int
    reports: Sequence[tuple[float, int]]
    seconds: float
    validation_seconds: float

    @property
    def speed(self) -> float:
        if len(self.reports) < 2:
            return 0.0
        (began, first), (ended, last) = self.reports[0], self.reports[-1]
        return (last - first) / (ended - began)

    @property
    def start_seconds(self) -> float:
        if not self.speed:
            return self.seconds
        began, first = self.reports[0]
        return max(0.0, began - first / self.speed)


def train(racer: Racer, plan: Plan, limit: float) -> Run:
    command, variables = racer.command(plan), _variables(racer, plan)
    began = time.monotonic()
    reports: list[tuple[float, int]] = []

    def look() -> float:
        now = time.monotonic() - began - racer.validation_seconds(plan)
        updates = racer.updates(plan)
        if updates > (reports[-1][1] if reports else 0):
            reports.append((now, updates))
        return now

    with plan.log.open("w", encoding="utf-8") as log, _started(command, variables, log) as process:
        while process.poll() is None and look() < limit:
            time.sleep(POLL_SECONDS)
        is_stopped = process.poll() is None
        # What a racer saves after the signal was trained before it.
        seconds = time.monotonic() - began - racer.validation_seconds(plan)
        if is_stopped:
            process.send_signal(racer.stop_signal)
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            raise _failure(racer, plan, "did not end after its time") from None
    if not is_stopped and process.returncode:
        raise _failure(racer, plan, f"ended with exit code {process.returncode}")
    updates = max(racer.checkpoints(plan), default=0)
    return Run(updates, reports, seconds, racer.validation_seconds(plan))


def translate(racer: Racer, plan: Plan, step: int, split: str) -> list[str]:
    source = plan.text.file(split, plan.text.source)
    done = subprocess.run(
        racer.decoder(plan, step),
        env=_variables(racer, plan),
        input=source.read_text(encoding="utf-8"),
        capture_output=True,
        text=True,
        check=False,
    )
    lines, expected = done.stdout.split("\n")[:-1], len(plan.text.lines(split, plan.text.source))
    if done.returncode or len(lines) < expected:
        end = "\n".join(done.stderr.splitlines()[-8:])
        raise RacerFailed(f"{racer.name} cannot translate with the checkpoint of {step}:\n{end}")
    # A racer may print lines before the first translation.
    return lines[-expected:]


def _variables(racer: Racer, plan: Plan) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(plan.cores)} | dict(racer.variables)


def _failure(racer: Racer, plan: Plan, what: str) -> RacerFailed:
    end = plan.log_text().splitlines()[-8:]
    return RacerFailed("\n".join([f"{racer.name} {what}; its log is {plan.log}:", *end]))


@contextlib.contextmanager
def _started(
    command: Sequence[str], variables: Mapping[str, str], log: IO[str]
) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        command,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
