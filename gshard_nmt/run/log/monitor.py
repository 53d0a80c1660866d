"""Turns the metrics of training steps into numbers for the log, and shows them."""

from collections.abc import Mapping
from typing import Any

from gshard_nmt.run.log.alarms import CollapseAlarm
from gshard_nmt.run.log.clock import (
    Clock,
    Interval,
    TimeLimit,
    process_metrics,
    slow_process,
    slow_process_text,
)
from gshard_nmt.run.log.counters import RunCounters
from gshard_nmt.run.log.figures import FigureNames
from gshard_nmt.run.log.progress import MetricsLog, TrainingProgress
from gshard_nmt.spmd.processes import Processes


class Monitor:
    """Logs and shows what a run does: its metrics, its speed, and what it waits for."""

    def __init__(
        self,
        log: MetricsLog,
        progress: TrainingProgress,
        processes: Processes,
        limit: TimeLimit,
        names: FigureNames,
        alarm: CollapseAlarm,
    ) -> None:
        """Starts the clock.

        Args:
          log: gets the numbers.
          progress: shows some of them.
          processes: the processes of the run. At each log line they tell each other their times.
          limit: the time that this start of the run may take.
          names: the layers and languages of the metrics.
          alarm: says when the experts of a layer collapse.
        """
        self.names = names
        self.clock = Clock()
        self._log, self._progress, self._processes, self._limit = log, progress, processes, limit
        self._alarm = alarm
        self._tokens_before = 0
        self._time_is_up = False
        self._named: set[int] = set()

    def start(self, counters: RunCounters) -> None:
        """Starts the clock of the first line. Call it just before the first step."""
        self.clock.interval()
        self._tokens_before = counters.total_tokens

    def time_is_up(self) -> bool:
        """Returns whether the time limit is over. All processes get the same answer at the same step.

        In a run of several processes, it is known only after a log line.
        """
        if self._processes.count == 1:
            self._time_is_up = self._limit.is_over()
        return self._time_is_up

    def log_step(self, counters: RunCounters, metrics: Mapping[str, Any]) -> None:
        """Logs and shows the metrics of a step, and the speed since the last log line.

        All processes must call it at the same steps.
        """
        interval = self.clock.interval()
        tokens = counters.total_tokens - self._tokens_before
        self._tokens_before = counters.total_tokens
        values = self.names.values(metrics)
        last_step = int(values.pop("last_step"))
        # In the step's metrics `tokens` are its target tokens; in the log, all tokens of the run.
        values["target_tokens"] = values.pop("tokens")
        values["tokens"] = counters.total_tokens
        values["tokens_per_second"] = tokens / max(interval.training_seconds, 1e-9)
        values |= interval.metrics()
        if self._processes.count > 1:
            values |= self._ask_processes(interval)
        self._log.write(counters.step, values)
        self._progress.show(counters.step, last_step, values)
        if text := self._alarm.check(values):
            self._progress.note(f"step {counters.step}: {text}")
            self._log.write_event(counters.step, "alarm", {"text": text})

    def _ask_processes(self, interval: Interval) -> dict[str, float]:
        """Returns the times of all processes, and tells the user once if one of them is slow."""
        steps = max(interval.steps, 1)
        own = (interval.training_seconds / steps, interval.own_seconds / steps)
        told = self._processes.gather([*own, self._limit.is_over()])
        step_seconds, own_seconds, over = zip(*told, strict=True)
        self._time_is_up = any(over)
        slow = slow_process(step_seconds, own_seconds)
        if slow is not None and slow not in self._named:
            self._named.add(slow)  # the log has its times in every line
            self._progress.note(slow_process_text(slow, own_seconds))
        return process_metrics(step_seconds, own_seconds)
