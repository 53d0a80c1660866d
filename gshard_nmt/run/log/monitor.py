"""Turns the metrics of training steps into numbers for the log, and shows them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.run.log.clock import Clock, RunCounters, TimeLimit
from gshard_nmt.run.log.line_log import MetricsLog
from gshard_nmt.run.log.progress import TrainingProgress
from gshard_nmt.spmd.processes import Processes

LINES = 3
"""The number of log lines in a row that must agree before an alarm starts or ends."""

FIGURE = "effective_experts"

SLOW_PROCESS = 1.25
"""A process is called slow if its own work takes this many times the median of all processes.

It also takes a tenth of a step or more."""


class CollapseAlarm:
    """Warns if few experts of an MoE layer get most of its tokens, and reports when this is over.

    A layer has collapsed if its effective experts, exp(entropy of the load), are fewer than a quarter of
    E in LINES log lines in a row. If E is 4 or less, a quarter of E is at most 1. The limit is then 1.1,
    because the value is 1 if one expert gets all tokens.

    The counts are not saved with a checkpoint. A run that is resumed counts anew, so it warns again after
    LINES log lines: its new log would else not mention a collapse that has begun before.
    """

    def __init__(self, experts: int, layers: Sequence[str]) -> None:
        self._experts, self._layers = experts, layers
        self._limit = max(experts / 4, 1.1)
        self._lines = dict.fromkeys(layers, 0)
        self._collapsed: set[str] = set()

    def check(self, values: Mapping[str, float]) -> str:
        """Returns a line to show about the figures of a log line; "" if nothing has changed."""
        started: list[str] = []
        ended: list[str] = []
        for layer in self._layers:
            value = values[f"{FIGURE}/{layer}"]
            is_collapsed = layer in self._collapsed
            # All comparisons with NaN are false, so NaN neither starts nor ends an alarm.
            changes = value >= self._limit if is_collapsed else value < self._limit
            self._lines[layer] = self._lines[layer] + 1 if changes else 0
            if self._lines[layer] == LINES:
                self._lines[layer] = 0
                self._collapsed ^= {layer}
                line = f"{layer} ({value:.1f} effective experts of {self._experts})"
                (ended if is_collapsed else started).append(line)
        lines = []
        if started:
            lines.append(
                f"ALARM: few experts get most tokens in {', '.join(started)}; raise "
                "Model.aux_loss_weight or lower Optimizer.learning_rate"
            )
        if ended:
            lines.append(f"the experts share the tokens again in {', '.join(ended)}")
        return "; ".join(lines)


_LAYER, _LANGUAGE = "layer_", "language_"
_BUSIEST = "busiest_expert/"


@dataclasses.dataclass(frozen=True)
class FigureNames:
    """Names the elements of metrics that are vectors: one element for each MoE layer or language."""

    layers: Sequence[str]  # in the order of `StepFunctions.moe_layer_names`
    languages: Sequence[str]  # in the order of `PreparedData.languages`

    def values(self, metrics: Mapping[str, Any]) -> dict[str, float | int]:
        """Returns numbers by name, such as `overflow_fraction/encoder_1` and `nll/fr`; waits for it.

        `busiest_expert` is the mean over the layers of the load of each layer's busiest expert. Languages
        without a target token in the batch are left out, and `tokens_seen`, which the counters read.
        """
        arrays = {name: np.asarray(array) for name, array in metrics.items()}
        has_tokens = arrays.get(f"{_LANGUAGE}target_tokens", np.zeros(0)) > 0
        values: dict[str, float | int] = {}
        for name, array in arrays.items():
            if not array.shape:
                values[name] = array.item()
            elif name.startswith(_LAYER):
                values |= _by_name(name.removeprefix(_LAYER), self.layers, array)
            elif name.startswith(_LANGUAGE):
                by_language = _by_name(name.removeprefix(_LANGUAGE), self.languages, array)
                pairs = zip(by_language.items(), has_tokens, strict=True)
                values |= dict(item for item, is_present in pairs if is_present)
        if layers := [number for name, number in values.items() if name.startswith(_BUSIEST)]:
            values["busiest_expert"] = sum(layers) / len(layers)
        return values


def _by_name(figure: str, names: Sequence[str], array: np.ndarray) -> dict[str, float]:
    numbers = array.tolist()
    return {f"{figure}/{name}": number for name, number in zip(names, numbers, strict=True)}


class Monitor:
    """Logs and shows what a run does: its metrics, its speed, and what it waits for."""

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
        self.clock = Clock()
        self._log, self._progress, self._processes, self._limit = log, progress, processes, limit
        self._alarm = CollapseAlarm(experts, names.layers)
        self._before = 0, 0
        self._time_is_up = False
        self._named: set[int] = set()

    def start(self, counters: RunCounters) -> None:
        """Starts the clock of the first line. Call it just before the first step."""
        self.clock.restart()
        self._before = counters.step, counters.total_tokens

    def time_is_up(self) -> bool:
        """Returns whether the time limit is over, the same in all processes at the same step.

        Several processes know it only after a log line.
        """
        if self._processes.count == 1:
            self._time_is_up = self._limit.is_over()
        return self._time_is_up

    def log_step(self, counters: RunCounters, metrics: Mapping[str, Any]) -> None:
        """Logs and shows the metrics of a step and the speed. All processes call it at the same steps."""
        steps, tokens = counters.step - self._before[0], counters.total_tokens - self._before[1]
        self._before = counters.step, counters.total_tokens
        seconds, phases = self.clock.lap()
        values = self.names.values(metrics)
        last_step = int(values.pop("last_step"))
        # In the step's metrics `tokens` are its target tokens; in the log, all tokens of the run.
        values["target_tokens"] = values.pop("tokens")
        values["tokens"] = counters.total_tokens
        values["tokens_per_second"] = tokens / seconds
        values["seconds_per_step"] = seconds / max(steps, 1)
        values |= {f"share_{phase}": phases[phase] / seconds for phase in phases}
        if self._processes.count > 1:
            own_seconds = (seconds - phases["step"]) / max(steps, 1)
            values |= self._ask_processes(values["seconds_per_step"], own_seconds)
        self._log.write(counters.step, values)
        self._progress.show(counters.step, last_step, values)
        if text := self._alarm.check(values):
            self._progress.note(f"step {counters.step}: {text}")
            self._log.write_event(counters.step, "alarm", {"text": text})

    def _ask_processes(self, step_seconds: float, own_seconds: float) -> dict[str, float]:
        """Returns the seconds of a step of each process, and those that its host works in a step.

        The devices of all processes wait for each other in every step. So the step takes the same time
        everywhere, and only the seconds in which a host did not wait for its devices show which is slow.
        """
        told = self._processes.gather([step_seconds, own_seconds, self._limit.is_over()])
        steps, own, over = zip(*told, strict=True)
        self._time_is_up = any(over)
        slow, median = int(np.argmax(own)), float(np.median(own))
        is_slow = own[slow] >= 0.1 * steps[slow] and own[slow] >= SLOW_PROCESS * median
        if is_slow and slow not in self._named:
            self._named.add(slow)  # the log has its times in every line
            self._progress.note(
                f"process {slow} is slow: its host works {own[slow]:.3f} s in each step while the "
                f"devices wait ({median:.3f} s in the median of all processes)"
            )
        names = {"process_seconds": steps, "process_own_seconds": own}
        return {f"{name}/{i}": s for name, times in names.items() for i, s in enumerate(times)}
