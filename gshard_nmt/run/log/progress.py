"""The progress of a training run: its bar on a terminal, its messages, its interruption."""

import contextlib
import math
import signal
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gshard_nmt.quantities import duration_text
from gshard_nmt.run.log.clock import RunCounters, TimeLimit
from gshard_nmt.run.together import Stopped, leave_terminal, stop_signals
from gshard_nmt.settings.config import Config, Key, Train
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import Program

if TYPE_CHECKING:
    from gshard_nmt.run.training_state import Patience
    from gshard_nmt.spmd.processes import Processes


class Interrupt:
    """Turns SIGINT, SIGTERM and SIGHUP into a request to stop after the current step.

    If there are several processes, the runtime handles the signals, and all stop at the same step.
    """

    def __init__(self, processes: "Processes") -> None:
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
    """Shows loss, speed and time left on stderr: a bar on a terminal, plain lines otherwise."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
        self._plain = not self._console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=self._plain,
        )
        self._task = self._bar.add_task(title, total=None, metrics="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def advance(self, step: int) -> None:
        self._bar.update(self._task, completed=step)

    def show(self, step: int, last_step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of a step. It also shows waits that take a twentieth of the time or more."""
        seconds = metrics["seconds_per_step"]
        text = (
            f"nll {metrics['nll']:.3f}  aux {metrics['aux_loss']:.2f}  "
            f"dropped {metrics['overflow_fraction']:.1%}  "
            f"{metrics['tokens_per_second']:,.0f} tokens/s"
        )
        for phase, words in (("input", "waits for input"), ("save", "saves")):
            if metrics[f"share_{phase}"] >= 0.05:
                text += f"  {words} {metrics[f'share_{phase}']:.0%}"
        self._bar.update(self._task, metrics=text, total=last_step)
        if self._plain:
            left = duration_text(seconds * max(last_step - step, 0))
            self.note(f"step {step}/{last_step}  {text}  {seconds:.3f} s/step  {left} left")


def starting(workdir: Path, counters: RunCounters, mesh: Mesh) -> str:
    axes = " x ".join(f"{a}={n}" for a, n in zip(mesh.axes, mesh.shape, strict=True))
    begin = (
        f"resuming {workdir} at step {counters.step}" if counters.step else f"starting {workdir}"
    )
    return f"{begin} on the mesh {axes}; compiling the training step"


def compiled(program: Program) -> str:
    counts = {kind: count for kind, count in program.collectives().items() if count}
    collectives = ", ".join(f"{n} {kind}" for kind, n in counts.items()) or "no collectives"
    return (
        f"lowered in {program.lower_seconds:.1f} s, compiled in {program.compile_seconds:.1f} s: "
        f"{collectives}; a step needs {program.memory().text()}"
    )


def void_settings(
    config: Config,
    has_dev_text: bool,
    set_by_user: Collection[Key] = (),
) -> Iterator[str]:
    """Yields a line for each setting that cannot have the effect that a user would expect of it."""
    train, data, optimizer = config.train, config.data, config.optimizer
    end = f"the run ends at step {train.steps}"
    validations = math.ceil(train.steps / train.dev_every) if train.dev_every else 0
    if train.patience and not validations:
        yield f"Train.patience has no effect: Train.dev_every is 0, so {end}"
    elif train.patience and not has_dev_text:
        yield f"Train.patience has no effect: the prepared data has no dev text, so {end}"
    elif 0 < validations <= train.patience:
        yield (
            f"Train.patience is {train.patience}, but the run validates only {validations} times until "
            f"{end.removeprefix('the run ends at ')}, so it cannot end early. Lower Train.dev_every"
        )
    if train.tokens > train.steps * data.batch_tokens:
        yield f"Train.tokens is {train.tokens:,}, but {end}, with fewer tokens. Raise Train.steps"
    if train.keep_every and math.lcm(train.keep_every, train.checkpoint_every) > train.steps:
        yield (
            f"Train.keep_every is {train.keep_every} and Train.checkpoint_every is "
            f"{train.checkpoint_every}, but {end}, so no checkpoint is kept for it"
        )
    if optimizer.linear_warmup_steps >= train.steps:
        yield (
            f"Optimizer.linear_warmup_steps is {optimizer.linear_warmup_steps}, but {end}, so the "
            "learning rate never reaches its full height"
        )
    if optimizer.cooldown_steps > train.steps:
        yield (
            f"Optimizer.cooldown_steps is {optimizer.cooldown_steps}, but {end}, so the learning rate "
            "falls from the first step on and never has its full height"
        )
    if data.subword_sampling_target and not data.subword_sampling:
        yield "Data.subword_sampling_target has no effect: Data.subword_sampling is 0"
    for class_name, field in set_by_user:
        if class_name == "Cleaning":
            yield (
                f"{class_name}.{field} has no effect: only gshard-data prepare reads it, and --data is "
                "prepared already"
            )


def interrupted(workdir: Path, counters: RunCounters) -> str:
    return f"saved {workdir} at step {counters.step}; the same command goes on from there"


def out_of_time(workdir: Path, counters: RunCounters, limit: TimeLimit) -> str:
    goes_on = "; the same command goes on from there" * (limit.flag == "--max_minutes")
    return (
        f"saved {workdir} at step {counters.step}, because the {limit.minutes:g} minutes of "
        f"{limit.flag} are over{goes_on}"
    )


def out_of_patience(limits: Train, patience: "Patience") -> str:
    return (
        f"{limits.patience} validations in a row without a better {limits.metric} than "
        f"{patience.best:.3f}: the run ends early (Train.patience)"
    )


def finished(workdir: Path, counters: RunCounters) -> str:
    return (
        f"{workdir}: {counters.step} steps, {counters.total_tokens:,} tokens, "
        f"{counters.seconds:.0f} s of training"
    )
