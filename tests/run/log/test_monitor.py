"""The numbers of a log line: metrics, speed, and the times of all processes."""

import json
import types

import numpy as np
import pytest

from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log.clock import RunCounters, TimeLimit
from gshard_nmt.run.log.line_log import MetricsLog
from gshard_nmt.run.log.monitor import LINES, CollapseAlarm, FigureNames, Monitor

METRICS = {
    "loss": np.float32(2.0),
    "nll": np.float32(1.5),
    "aux_loss": np.float32(1.0),
    "overflow_fraction": np.float32(0.25),
    "tokens": np.float32(40),
    "last_step": np.int32(200),
    "tokens_seen": np.zeros((2, 2), np.uint32),
    "layer_effective_experts": np.array([1.2], np.float32),
}


class Shown:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.shown: list[tuple] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def show(self, step: int, last_step: int, metrics: dict) -> None:
        self.shown.append((step, last_step, metrics["tokens_per_second"]))


@pytest.fixture
def log(tmp_path):
    log = MetricsLog(RunFolder(tmp_path), step=0)
    yield log
    log.close()


def monitor(log: MetricsLog, processes, limit: TimeLimit | None = None) -> tuple[Monitor, Shown]:
    shown = Shown()
    names = FigureNames(["encoder_1"], ["fr", "de"])
    return Monitor(log, shown, processes, limit or TimeLimit(), names, 8), shown


ONE = types.SimpleNamespace(count=1)


def step(monitor: Monitor, now, counters: RunCounters, tokens: int, seconds: float) -> None:
    with monitor.clock.phase("step"):
        now.now += seconds
    counters.step += 1
    counters.tokens = {"fr": counters.total_tokens + tokens}


def test_a_line_has_the_speed_since_the_last_line_without_validations(tmp_path, log, now):
    run, counters = RunFolder(tmp_path), RunCounters(step=4, tokens={"fr": 1000})
    watched, shown = monitor(log, ONE)
    now.now += 60  # compilation
    watched.start(counters)
    step(watched, now, counters, 100, 1.0)
    step(watched, now, counters, 100, 1.0)
    watched.log_step(counters, METRICS)
    with watched.clock.phase("validation"):
        now.now += 30
    step(watched, now, counters, 100, 4.0)
    watched.log_step(counters, METRICS)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [6, 7]
    assert [line["tokens_per_second"] for line in lines] == [100, 25]
    assert [line["seconds_per_step"] for line in lines] == [1, 4]
    # The tokens of the run, and the target tokens of this step.
    assert [line["tokens"] for line in lines] == [1200, 1300]
    assert [line["target_tokens"] for line in lines] == [40, 40]
    assert lines[0]["share_step"] == 1.0
    assert shown.shown == [(6, 200, 100), (7, 200, 25)]
    assert list((tmp_path / "tensorboard").iterdir())


def test_processes_tell_each_other_their_times_and_the_slow_one_is_named(tmp_path, log, now):
    run, counters, sent = RunFolder(tmp_path), RunCounters(), []

    def gather(own):
        sent.append(own)
        # The other process works 0.9 s in each step of 1 s before its devices can start.
        return [own, [1.0, 0.9, True]]

    watched, shown = monitor(log, types.SimpleNamespace(count=2, gather=gather))
    watched.start(counters)
    assert not watched.time_is_up()
    step(watched, now, counters, 10, 1.0)
    watched.log_step(counters, METRICS)
    (line,) = map(json.loads, run.metrics.read_text().splitlines())
    assert sent == [[1.0, 0.0, False]]
    assert (line["process_seconds/1"], line["process_own_seconds/1"]) == (1.0, 0.9)
    assert shown.notes == [
        "process 1 is slow: its host works 0.900 s in each step while the devices wait (0.450 s in the "
        "median of all processes)"
    ]
    # The time of the other process is over, so all end at this step.
    assert watched.time_is_up()
    # It is named once.
    step(watched, now, counters, 10, 1.0)
    watched.log_step(counters, METRICS)
    assert len(shown.notes) == 1


@pytest.mark.parametrize(
    ("own", "is_slow"),
    [
        ([0.01, 0.01, 0.5, 0.01], True),
        ([0.3, 0.3, 0.31, 0.3], False),
        # A host that works little is not slow, whatever the ratio.
        ([0.001, 0.001, 0.09, 0.001], False),
    ],
)
def test_the_process_that_the_others_wait_for_is_named(log, now, own, is_slow):
    told = types.SimpleNamespace(count=4, gather=lambda _: [[1.0, s, False] for s in own])
    watched, shown = monitor(log, told)
    step(watched, now, counters := RunCounters(), 10, 1.0)
    watched.log_step(counters, METRICS)
    assert [note.startswith("process 2 is slow") for note in shown.notes] == [True] * is_slow


def test_one_process_knows_at_every_step_whether_its_time_is_up(log, now):
    watched, _ = monitor(log, ONE, TimeLimit(minutes=1))
    assert not watched.time_is_up()
    now.now += 60
    assert watched.time_is_up()


def test_collapsed_experts_raise_an_alarm_that_the_log_keeps(tmp_path, log, now):
    run, counters = RunFolder(tmp_path), RunCounters()
    watched, shown = monitor(log, ONE)
    for _ in range(3):
        step(watched, now, counters, 10, 1.0)
        watched.log_step(counters, METRICS)
    (note,) = shown.notes
    assert note.startswith(
        "step 3: ALARM: few experts get most tokens in encoder_1 (1.2 effective "
    )
    *lines, event = map(json.loads, run.metrics.read_text().splitlines())
    assert (event["step"], event["event"]) == (3, "alarm")
    assert [line["effective_experts/encoder_1"] for line in lines] == [pytest.approx(1.2)] * 3


def lines_of(experts: int, *series: list[float]) -> list[str]:
    """Returns the lines for these effective experts of layers a, b, ..., one entry for each log line."""
    names = "abc"[: len(series)]
    alarm = CollapseAlarm(experts, names)
    return [
        alarm.check(
            {f"effective_experts/{n}": value for n, value in zip(names, values, strict=True)}
        )
        for values in zip(*series, strict=True)
    ]


def test_a_collapse_is_told_once_and_so_is_its_end():
    low, high = 1.9, 2.0
    lines = lines_of(8, [low] * 5 + [high] * 4 + [low] * 3)
    assert [bool(line) for line in lines] == [i in (2, 7, 11) for i in range(12)]
    assert lines[2].startswith(
        "ALARM: few experts get most tokens in a (1.9 effective experts of 8); "
    )
    assert lines[7] == "the experts share the tokens again in a (2.0 effective experts of 8)"
    assert lines[11] == lines[2]


def test_a_few_low_lines_are_no_alarm():
    assert not any(lines_of(8, [1.0, 1.0, 5.0] * 4))
    assert not any(lines_of(8, [float("nan")] * 4))


@pytest.mark.parametrize(("experts", "value"), [(2, 1.0), (4, 1.05), (2048, 511.0)])
def test_a_collapse_is_seen_with_any_number_of_experts(experts, value):
    assert lines_of(experts, [value] * LINES)[-1]
    assert not any(lines_of(experts, [value + 1] * LINES))


NAMES = FigureNames(["encoder_1", "decoder_1"], ["fr", "de", "ga"])


def test_each_layer_and_each_language_of_the_batch_has_a_name():
    values = NAMES.values(
        {
            "loss": np.float32(2.5),
            "status": np.int32(0),
            "tokens_seen": np.zeros((3, 2), np.uint32),
            "busiest_expert": np.float32(
                2
            ),  # of the sums over layers, whose experts are not the same
            "layer_busiest_expert": np.array([4, 3], np.float32),
            "layer_overflow_fraction": np.array([0.25, 0.5], np.float32),
            "language_target_tokens": np.array([7, 0, 2], np.float32),
            "language_nll": np.array([1.5, 0, 2], np.float32),
        }
    )
    assert values == {
        "loss": 2.5,
        "status": 0,
        "busiest_expert": 3.5,
        "busiest_expert/encoder_1": 4,
        "busiest_expert/decoder_1": 3,
        "overflow_fraction/encoder_1": 0.25,
        "overflow_fraction/decoder_1": 0.5,
        "target_tokens/fr": 7,
        "target_tokens/ga": 2,
        "nll/fr": 1.5,
        "nll/ga": 2,
    }
    assert json.loads(json.dumps(values)) == values
