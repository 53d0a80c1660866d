"""What a training run shows and records while it works."""

import dataclasses
import json
import math
import signal
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.run.folder import RunFolder
    from gshard_nmt.spmd.processes import Processes


@dataclasses.dataclass
class Ledger:
    """How far a run has come.

    Attributes:
      step: training steps done.
      tokens: real tokens seen of each language, source and target, by all processes; as of the last
        `settle`.
      seconds: of training, from all the times that the run was started.
    """

    step: int = 0
    tokens: dict[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._counted = time.perf_counter()
        self._unsettled: dict[str, int] = {}

    @property
    def total_tokens(self) -> int:
        """Real tokens of all languages."""
        return sum(self.tokens.values())

    def count(self, tokens: Mapping[str, int]) -> None:
        """Records one more step, in which this process's rows held these tokens."""
        self.step += 1
        for language, number in tokens.items():
            self._unsettled[language] = self._unsettled.get(language, 0) + int(number)
        now = time.perf_counter()
        self.seconds += now - self._counted
        self._counted = now

    def settle(self, sum_over_processes: Callable[[Mapping[str, int]], Mapping[str, int]]) -> None:
        """Adds what all processes have counted; all must call it at the same step."""
        for language, number in sum_over_processes(self._unsettled).items():
            self.tokens[language] = self.tokens.get(language, 0) + number
        self._unsettled = dict.fromkeys(self._unsettled, 0)

    def skip_time(self) -> None:
        """Leaves out what has passed since the last step: compilation or evaluation."""
        self._counted = time.perf_counter()

    def last_step(self, steps: int, tokens: int) -> int:
        """The step at which a run bounded by steps and by tokens (0 = no bound) is going to end."""
        if not tokens or not self.step:
            return steps
        left = max(tokens - self.total_tokens, 0)
        return min(steps, self.step + math.ceil(left * self.step / self.total_tokens))

    def is_complete(self, steps: int, tokens: int) -> bool:
        """Whether either bound is reached."""
        return self.step >= steps or bool(tokens and self.total_tokens >= tokens)


class Interrupt:
    """Turns SIGINT and SIGTERM into a request to stop after the step at hand.

    With several processes the runtime has the signals, and all stop at the same step.
    """

    def __init__(self, processes: "Processes") -> None:
        """Nothing is requested yet; the signals are caught inside `with`."""
        self._processes = processes
        self.requested = False

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM) if self._processes.count == 1 else ()
        self._before = {number: signal.signal(number, self._request) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stops_after(self, step: int) -> bool:
        """Whether to stop, now that this step is done; to be asked after every step."""
        if self._processes.should_stop(step):
            self.requested = True
        return self.requested

    def _request(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt("stopped at once; the last checkpoint is what there is")
        self.requested = True


class TrainingProgress:
    """A bar with loss, speed and time left on a terminal; plain lines elsewhere; on stderr."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        """`title` names the run; `quiet` shows nothing, where another process does."""
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
        """Shows a line of metrics."""
        text = (
            f"nll {metrics['nll']:.3f}  aux {metrics['aux_loss']:.2f}  "
            f"dropped {metrics['overflow_fraction']:.1%}  "
            f"{metrics['tokens_per_second']:,.0f} tokens/s"
        )
        self._bar.update(self._task, metrics=text)
        if self._plain:
            self.note(f"step {step}/{last_step}  {text}")


class MetricsLog:
    """metrics.jsonl and TensorBoard event files."""

    def __init__(self, run: "RunFolder", step: int, writes: bool = True) -> None:
        """Opens the log of a run that is at `step`; what an unsaved future wrote is dropped.

        With `writes` false nothing is written, where another process writes.
        """
        self._writes = writes
        self._since: tuple[float, int | None] = (time.perf_counter(), None)
        if not writes:
            return
        from tensorboardX import SummaryWriter

        kept = _until(run.metrics.read_text(), step) if run.metrics.exists() else ""
        run.write_text(run.metrics.name, kept)
        self._file = run.metrics.open("a", buffering=1)
        self._board = SummaryWriter(str(run.path / "tensorboard"), purge_step=step + 1)

    def step_metrics(self, ledger: Ledger, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Writes the metrics of a training step, with the speed since the last call.

        Raises:
          UserError: the loss is not a number any more.
        """
        values = {name: float(value) for name, value in metrics.items()}
        if not math.isfinite(values["loss"]):
            raise UserError(
                f"the loss is {values['loss']} at step {ledger.step}: training has diverged. The last "
                "checkpoint is from before; lower Optimizer.learning_rate or set "
                "Optimizer.linear_warmup_steps, with a new --workdir."
            )
        began, tokens = self._since
        now = time.perf_counter()
        values["tokens_per_second"] = (
            (ledger.total_tokens - tokens) / (now - began) if tokens is not None else 0.0
        )
        self._since = (now, ledger.total_tokens)
        # The step's own count is of real target tokens; the run's is of all it has seen.
        values["target_tokens"] = values.pop("tokens")
        values["tokens"] = ledger.total_tokens
        self.write(ledger.step, values)
        return values

    def restart_clock(self, ledger: Ledger) -> None:
        """Leaves what has passed since the last line out of the speed of the next."""
        self._since = (time.perf_counter(), ledger.total_tokens)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one line, and the same values as TensorBoard scalars."""
        if not self._writes:
            return
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes both."""
        if self._writes:
            self._file.close()
            self._board.close()


def _until(lines: str, step: int) -> str:
    return "".join(
        line for line in lines.splitlines(keepends=True) if json.loads(line)["step"] <= step
    )
