"""Progress of a training run: its bar on a terminal, its log of metrics, and how to interrupt it."""

import math
import signal
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gshard_nmt.errors import UserError
from gshard_nmt.run.counters import RunCounters
from gshard_nmt.run.line_log import EventFiles, LineLog
from gshard_nmt.run.log_mirror import LogMirror

if TYPE_CHECKING:
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.spmd.processes import Processes


class Interrupt:
    """Turns SIGINT and SIGTERM into a request to stop after the current step.

    If there are several processes, the runtime handles the signals, and all stop at the same step.
    """

    def __init__(self, processes: "Processes") -> None:
        """Does not catch signals yet. The `with` block does."""
        self._processes = processes
        self.requested = False

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM) if self._processes.count == 1 else ()
        self._handlers = {number: signal.signal(number, self._request) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def stops_after(self, step: int) -> bool:
        """Returns whether to stop now. It must be called after every step, with its number."""
        if self._processes.should_stop(step):
            self.requested = True
        return self.requested

    def _request(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt(
                "stopped at once; start the run again to continue from its last checkpoint"
            )
        self.requested = True


class TrainingProgress:
    """Shows loss, speed and time left on stderr: a bar on a terminal, plain lines otherwise."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        """Makes the bar.

        Args:
          title: the name of the run.
          quiet: whether to show nothing. Only the first process of a run shows its progress.
        """
        self._console = Console(stderr=True, highlight=False, quiet=quiet)
        self._plain = not self._console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
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
        """Prints one line."""
        self._console.print(text, markup=False, soft_wrap=True)

    def advance(self, step: int, last_step: int) -> None:
        """Moves the bar."""
        self._bar.update(self._task, completed=step, total=last_step)

    def show(self, step: int, last_step: int, metrics: Mapping[str, Any]) -> None:
        """Shows the metrics of a step."""
        text = (
            f"nll {metrics['nll']:.3f}  aux {metrics['aux_loss']:.2f}  "
            f"dropped {metrics['overflow_fraction']:.1%}  "
            f"{metrics['tokens_per_second']:,.0f} tokens/s"
        )
        self._bar.update(self._task, metrics=text)
        if self._plain:
            self.note(f"step {step}/{last_step}  {text}")


class MetricsLog:
    """Writes metrics.jsonl and TensorBoard event files. A log that cannot be written ends no run."""

    def __init__(
        self,
        run: "RunFolder",
        counters: RunCounters,
        writes: bool = True,
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Opens the log of a run, and removes the lines after the step that the run resumes from.

        Args:
          run: the run folder.
          counters: how far the run has come.
          writes: whether to write the log. Only the first process of a run does.
          say: shows a line if the log is damaged or cannot be written; None shows nothing.
        """
        self._writes = writes
        self.restart_clock(counters)
        if not writes:
            return
        say = say or (lambda _: None)
        self._mirror = LogMirror(run.path, (run.metrics.name,), say)
        folder = self._mirror.folder
        self._lines = LineLog(folder / run.metrics.name, say)
        self._lines.resume(counters.step)
        self._events = EventFiles(folder / "tensorboard", counters.step + 1, say)

    def step_metrics(self, counters: RunCounters, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Writes the metrics of a training step, and the speed since the last restart of the clock.

        Then it restarts the clock.

        Raises:
          UserError: the loss is not a finite number.
        """
        values = {name: float(value) for name, value in metrics.items()}
        if not math.isfinite(values["loss"]):
            raise UserError(
                f"the loss is {values['loss']} at step {counters.step}: training has diverged. Lower "
                "Optimizer.learning_rate or set Optimizer.linear_warmup_steps, and start again with a "
                "new --workdir."
            )
        now = time.perf_counter()
        tokens = counters.total_tokens - self._tokens_before
        values["tokens_per_second"] = tokens / (now - self._began)
        self.restart_clock(counters)
        # In the step's metrics `tokens` are its target tokens; in the log, all tokens of the run.
        values["target_tokens"] = values.pop("tokens")
        values["tokens"] = counters.total_tokens
        self.write(counters.step, values)
        return values

    def restart_clock(self, counters: RunCounters) -> None:
        """Restarts the clock: the speed of the next line leaves out the time until now."""
        self._began, self._tokens_before = time.perf_counter(), counters.total_tokens

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one line to metrics.jsonl, and each of its values to TensorBoard."""
        if not self._writes:
            return
        self._lines.append({"step": step, **values})
        self._events.add(step, values)
        self._mirror.upload()

    def flush(self) -> None:
        """Writes what a bucket does not have yet. Call it before a checkpoint, so no line is lost."""
        if self._writes:
            self._mirror.upload(at_once=True)

    def close(self) -> None:
        """Closes metrics.jsonl and the event files."""
        if self._writes:
            self._events.close()
            self._mirror.close()
