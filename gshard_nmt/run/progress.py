"""The progress of a training run: its bar on a terminal, its messages, its interruption."""

import contextlib
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gshard_nmt.quantities import duration_text
from gshard_nmt.run.together import Stopped, leave_terminal, stop_signals
from gshard_nmt.run.training_state import RunCounters
from gshard_nmt.settings.config import Config, Key
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.processes import Processes
from gshard_nmt.spmd.program import Program
from gshard_nmt.terminal import Terminal


class TimeLimit:
    """The time that one start of a program may take, in minutes; 0 means no limit."""

    def __init__(self, minutes: float = 0) -> None:
        self.minutes = minutes
        self._ends = time.perf_counter() + 60 * minutes

    def is_over(self) -> bool:
        return bool(self.minutes) and time.perf_counter() >= self._ends


class Interrupt:
    """Turns SIGINT, SIGTERM and SIGHUP into a request to stop after the current step.

    If there are several processes, the runtime handles the signals, and all stop at the same step.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._stops_at_once = False
        self.requested = False

    def __enter__(self) -> Self:
        numbers = stop_signals() if self._processes.count == 1 else ()
        self._handlers = {number: signal.signal(number, self._request) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def stops_now(self) -> bool:
        """Returns whether to stop now. It must be called after every step."""
        if self._processes.should_stop():
            self.requested = True
        return self.requested

    @contextlib.contextmanager
    def stops_at_once(self) -> Iterator[None]:
        """Lets a signal raise `Stopped` in this block, also one that came before."""
        self._stops_at_once = True
        try:
            if self.requested:
                raise Stopped
            yield
        finally:
            self._stops_at_once = False

    def _request(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number == signal.SIGHUP:
            leave_terminal()
        if self._stops_at_once:
            self.requested = True
            raise Stopped
        if self.requested and number == signal.SIGINT:
            raise Stopped(
                "stopped at once; start the run again to continue from its last checkpoint"
            )
        self.requested = True


class TrainingProgress:
    """Shows loss, speed and time left on stderr: a bar on a terminal, plain lines otherwise.

    `with progress.bar` shows the bar.
    """

    def __init__(self, title: str, quiet: bool = False) -> None:
        self._console = Terminal(stderr=True)
        self._console.quiet = quiet
        self._plain = not self._console.is_terminal
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=self._plain,
        )
        self._task = self.bar.add_task(title, total=None, metrics="")

    def note(self, text: str) -> None:
        self._console.print(text)

    def advance(self, step: int) -> None:
        self.bar.update(self._task, completed=step)

    def show(self, step: int, last_step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of a step. Waits for input of a twentieth of the time too."""
        seconds = metrics["seconds_per_step"]
        text = (
            f"nll {metrics['nll']:.3f}  aux {metrics['aux_loss']:.2f}  "
            f"dropped {metrics['overflow_fraction']:.1%}  "
            f"{metrics['tokens_per_second']:,.0f} tokens/s"
        )
        if metrics["share_input"] >= 0.05:
            text += f"  waits for input {metrics['share_input']:.0%}"
        self.bar.update(self._task, metrics=text, total=last_step)
        if self._plain:
            left = duration_text(seconds * max(last_step - step, 0))
            self.note(f"step {step}/{last_step}  {text}  {seconds:.3f} s/step  {left} left")


def starting(workdir: Path, counters: RunCounters, mesh: Mesh) -> str:
    begin = (
        f"resuming {workdir} at step {counters.step}" if counters.step else f"starting {workdir}"
    )
    return f"{begin} on the mesh {mesh.words}; compiling the training step"


def compiled(program: Program) -> str:
    counts = {kind: count for kind, count in program.collectives().items() if count}
    collectives = ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "no collectives"
    return (
        f"lowered in {program.lower_seconds:.1f} s, compiled in {program.compile_seconds:.1f} s: "
        f"{collectives}; a step needs {program.memory().text()}"
    )


def void_settings(config: Config, set_by_user: Collection[Key] = ()) -> Iterator[str]:
    """Yields a line for each setting that cannot have the effect that a user would expect of it."""
    train, optimizer = config.train, config.optimizer
    end = f"the run ends at step {train.steps}"
    if train.patience and not train.dev_every:
        yield f"Train.patience has no effect: Train.dev_every is 0, so {end}"
    if optimizer.linear_warmup_steps >= train.steps:
        yield (
            f"Optimizer.linear_warmup_steps is {optimizer.linear_warmup_steps}, but {end}, so the "
            "learning rate never reaches its full height"
        )
    for class_name, field in set_by_user:
        if class_name == "Cleaning":
            yield (
                f"{class_name}.{field} has no effect: only gshard-data prepare reads it, and --data is "
                "prepared already"
            )
