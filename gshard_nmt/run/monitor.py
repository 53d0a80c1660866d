"""Watches a run: the figures of its steps for the log, bad steps, and a trace of some steps."""

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files
from gshard_nmt.model.guard import FINE, JUMP, REASONS
from gshard_nmt.run.log import MetricsLog
from gshard_nmt.run.progress import TimeLimit, TrainingProgress
from gshard_nmt.run.training_state import RunCounters
from gshard_nmt.spmd.processes import Processes

LINES = 3
"""The number of log lines in a row that must agree before an alarm."""


def fewest_effective_experts(experts: int) -> float:
    """Returns the effective experts, exp(entropy of the load), below which a layer has collapsed.

    It is a quarter of E, but at least 1.1, because the value is 1 if one expert gets all tokens.
    """
    return max(experts / 4, 1.1)


class CollapseAlarm:
    """Warns if few experts of an MoE layer get most of its tokens in LINES log lines in a row."""

    def __init__(self, experts: int, layers: Sequence[str]) -> None:
        self._experts = experts
        self._limit = fewest_effective_experts(experts)
        self._lines = dict.fromkeys(layers, 0)

    def check(self, values: Mapping[str, float]) -> str:
        """Returns a warning about the figures of a log line, once for each collapse; or ""."""
        collapsed = []
        for layer, lines in self._lines.items():
            value = values[f"effective_experts/{layer}"]
            self._lines[layer] = lines + 1 if value < self._limit else 0
            if self._lines[layer] == LINES:
                collapsed.append(f"{layer} ({value:.1f} effective experts of {self._experts})")
        if not collapsed:
            return ""
        return (
            f"ALARM: few experts get most tokens in {', '.join(collapsed)}; raise "
            "Model.aux_loss_weight or lower Optimizer.learning_rate"
        )


@dataclasses.dataclass(frozen=True)
class FigureNames:
    """Names the elements of metrics that are vectors: one element for each MoE layer or language."""

    layers: Sequence[str]  # in the order of `figures.moe_layer_names`
    languages: Sequence[str]  # in the order of `PreparedData.languages`

    def values(self, metrics: Mapping[str, Any]) -> dict[str, float | int]:
        """Returns numbers by name, such as `overflow_fraction/encoder_1` and `nll/fr`; waits for it.

        Languages without a target token in the batch are left out, and `tokens_seen`, which the counters
        read.
        """
        arrays = {name: np.asarray(array) for name, array in metrics.items()}
        has_tokens = arrays.get("language_target_tokens", np.zeros(len(self.languages))) > 0
        languages = zip(self.languages, has_tokens, strict=True)
        # the names of the elements; None for those that are left out
        names: dict[str, Sequence[str | None]] = {
            "layer": self.layers,
            "language": [name if is_present else None for name, is_present in languages],
        }
        values: dict[str, float | int] = {}
        for name, array in arrays.items():
            kind, _, figure = name.partition("_")
            if not array.shape:
                # `tokens` of a step are its target tokens; in the log, all tokens of the run.
                values["target_tokens" if name == "tokens" else name] = array.item()
            elif kind in names:
                pairs = zip(names[kind], array.tolist(), strict=True)
                values |= {f"{figure}/{n}": number for n, number in pairs if n is not None}
        return values


class StepWatch:
    """Looks at the status of a step only after the next one has started, so no device waits for the host.

    `bad` has the numbers and metrics of the steps whose update was withheld, without the last step, whose
    status is not read yet.
    """

    def __init__(self) -> None:
        self.bad: list[tuple[int, Mapping[str, Any]]] = []
        self._last: tuple[int, Mapping[str, Any]] | None = None

    def add(self, number: int, metrics: Mapping[str, Any]) -> None:
        self.settle()
        self._last = number, metrics

    def settle(self) -> None:
        last, self._last = self._last, None
        if last and int(last[1]["status"]) != FINE:
            self.bad.append(last)


def reason_of(metrics: Mapping[str, Any]) -> str:
    """Returns why the update of a bad step was withheld."""
    status = int(metrics["status"])
    if status != JUMP:
        return REASONS[status]
    norm, usual = (float(metrics[n]) for n in ("gradient_norm", "usual_gradient_norm"))
    return f"{REASONS[JUMP]} to {norm:.3g}, and {usual:.3g} is usual"


class Monitor:
    """Logs and shows what a run does: its metrics, its speed, and how long it waits for input."""

    def __init__(
        self,
        log: MetricsLog,
        progress: TrainingProgress,
        processes: Processes,
        limit: TimeLimit,
        names: FigureNames,
        experts: int,
    ) -> None:
        self.names = names
        self.input_seconds = 0.0  # in which the run has waited for batches since the last line
        self._log, self._progress, self._processes, self._limit = log, progress, processes, limit
        self._alarm = CollapseAlarm(experts, names.layers)
        self._time_is_up = False

    def start(self, counters: RunCounters) -> None:
        """Begins the time of the next line."""
        self._before = counters.step, counters.total_tokens, counters.seconds
        self.input_seconds = 0.0

    def time_is_up(self) -> bool:
        """Returns whether the time limit is over, the same in all processes at the same step.

        Several processes know it only after a log line.
        """
        if self._processes.count == 1:
            self._time_is_up = self._limit.is_over()
        return self._time_is_up

    def log_step(self, counters: RunCounters, metrics: Mapping[str, Any]) -> None:
        """Logs and shows the metrics of a step and the speed. All processes call it at the same steps."""
        now = counters.step, counters.total_tokens, counters.seconds
        steps, tokens, seconds = (new - old for new, old in zip(now, self._before, strict=True))
        seconds = max(seconds, 1e-9)
        values = self.names.values(metrics)
        last_step = int(values.pop("last_step"))
        values["tokens"] = counters.total_tokens
        values["tokens_per_second"] = tokens / seconds
        values["seconds_per_step"] = seconds / max(steps, 1)
        values["share_input"] = self.input_seconds / seconds
        self.start(counters)
        if self._processes.count > 1:
            self._time_is_up = any(self._processes.gather(self._limit.is_over()))
        self._log.write(counters.step, values)
        self._progress.show(counters.step, last_step, values)
        if text := self._alarm.check(values):
            self._progress.note(f"step {counters.step}: {text}")
            self._log.write_event(counters.step, "alarm", {"text": text})


SKIPPED_STEPS, TRACED_STEPS = 5, 5
"""Steps before a trace, and its steps. The first ones are slower: they load the program."""


class Profile:
    """Traces a few steps of a start of a run for TensorBoard: `gshard-train --profile`.

    In a run of several processes, each writes its own file into one folder. A trace that cannot be
    written ends no run.
    """

    def __init__(self, folder: Path, wanted: bool, process: int = 0) -> None:
        self._folder, self._wanted, self._process = folder, wanted, process
        self._steps = self._last_step = 0
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def count_step(self, step: int) -> str:
        """Starts or ends the trace if it is time to. Returns a line to show, or ""."""
        self._steps, self._last_step = self._steps + 1, step
        if self._wanted and self._steps == SKIPPED_STEPS:
            import jax

            # jax cannot write to every bucket, and names the file after the host only. So we copy it.
            self._temporary = tempfile.TemporaryDirectory(prefix="gshard-nmt-trace-")
            jax.profiler.start_trace(self._temporary.name)
        return self.close() if self._steps == SKIPPED_STEPS + TRACED_STEPS else ""

    def close(self) -> str:
        """Ends the trace, if there is one, at the end of a start. Returns a line to show, or ""."""
        early = ""
        if self._wanted and self._steps <= SKIPPED_STEPS:
            early = (
                f"no trace: --profile skips {SKIPPED_STEPS} steps, and this start had {self._steps}"
            )
        if self._temporary is None:
            return early
        import jax

        target = self._folder / "plugins" / "profile" / f"step-{self._last_step}"
        try:
            with self._temporary as folder:
                jax.profiler.stop_trace()
                if early:
                    return early
                target.mkdir(parents=True, exist_ok=True)
                for file in sorted(Path(folder).rglob("*.xplane.pb")):
                    host = file.name.removesuffix(".xplane.pb")
                    name = f"{host}.process-{self._process}.xplane.pb"
                    files.write(target / name, file.read_bytes())
        except (OSError, jax.errors.JaxRuntimeError) as error:
            return f"the trace cannot be written: {error}. Training goes on"
        finally:
            self._temporary = None
        return (
            f"a trace of {min(self._steps - SKIPPED_STEPS, TRACED_STEPS)} steps is in {self._folder}; to "
            f"see it: pip install tensorboard xprof, then tensorboard --logdir {self._folder}"
        )
