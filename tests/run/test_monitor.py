"""The numbers of a log line: metrics, speed, alarms; bad steps; and the trace of a few steps."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gshard_nmt.model.guard import BAD_LOSS, FINE, JUMP
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log import MetricsLog
from gshard_nmt.run.monitor import (
    LINES,
    SKIPPED_STEPS,
    TRACED_STEPS,
    CollapseAlarm,
    FigureNames,
    Monitor,
    Profile,
    StepWatch,
    reason_of,
)
from gshard_nmt.run.progress import TimeLimit
from gshard_nmt.run.training_state import RunCounters

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


def step(now, counters: RunCounters, tokens: int, seconds: float) -> None:
    now.now += seconds
    counters.count(np.array([[counters.total_tokens + tokens, 0], [0, 0]], np.uint32), ["fr", "de"])
    counters.read()


def test_a_line_has_the_speed_since_the_last_line_without_validations(tmp_path, log, now):
    run, counters = RunFolder(tmp_path), RunCounters(step=4, tokens={"fr": 1000})
    watched, shown = monitor(log, ONE)
    now.now += 60  # compilation
    counters.skip_time()
    watched.start(counters)
    step(now, counters, 100, 1.0)
    step(now, counters, 100, 1.0)
    watched.input_seconds += 0.5
    watched.log_step(counters, METRICS)
    now.now += 30  # validation
    counters.skip_time()
    step(now, counters, 100, 4.0)
    watched.log_step(counters, METRICS)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [6, 7]
    assert [line["tokens_per_second"] for line in lines] == [100, 25]
    assert [line["seconds_per_step"] for line in lines] == [1, 4]
    assert [line["share_input"] for line in lines] == [0.25, 0]
    # The tokens of the run, and the target tokens of this step.
    assert [line["tokens"] for line in lines] == [1200, 1300]
    assert [line["target_tokens"] for line in lines] == [40, 40]
    assert shown.shown == [(6, 200, 100), (7, 200, 25)]
    assert list((tmp_path / "tensorboard").iterdir())


def test_if_the_time_of_one_process_is_over_all_end_at_the_same_step(log, now):
    counters = RunCounters()
    watched, _ = monitor(log, types.SimpleNamespace(count=2, gather=lambda own: [own, True]))
    watched.start(counters)
    assert not watched.time_is_up()
    watched.log_step(counters, METRICS)
    assert watched.time_is_up()


def test_one_process_knows_at_every_step_whether_its_time_is_up(log, now):
    watched, _ = monitor(log, ONE, TimeLimit(minutes=1))
    assert not watched.time_is_up()
    now.now += 60
    assert watched.time_is_up()


def test_collapsed_experts_raise_an_alarm_that_the_log_keeps(tmp_path, log, now):
    run, counters = RunFolder(tmp_path), RunCounters()
    watched, shown = monitor(log, ONE)
    watched.start(counters)
    for _ in range(3):
        step(now, counters, 10, 1.0)
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


def test_a_collapse_is_told_once():
    low, high = 1.9, 2.0
    lines = lines_of(8, [low] * 5 + [high] * 4 + [low] * 3)
    assert [bool(line) for line in lines] == [i in (2, 11) for i in range(12)]
    assert lines[2].startswith(
        "ALARM: few experts get most tokens in a (1.9 effective experts of 8); "
    )
    assert lines[11] == lines[2]


def test_a_few_low_lines_are_no_alarm():
    assert not any(lines_of(8, [1.0, 1.0, 5.0] * 4))
    assert not any(lines_of(8, [float("nan")] * 4))


@pytest.mark.parametrize(("experts", "value"), [(2, 1.0), (4, 1.05), (2048, 511.0)])
def test_a_collapse_is_seen_with_any_number_of_experts(experts, value):
    assert lines_of(experts, [value] * LINES)[-1]
    assert not any(lines_of(experts, [value + 1] * LINES))


def test_each_layer_and_each_language_of_the_batch_has_a_name():
    values = FigureNames(["encoder_1", "decoder_1"], ["fr", "de", "ga"]).values(
        {
            "loss": np.float32(2.5),
            "status": np.int32(0),
            "tokens_seen": np.zeros((3, 2), np.uint32),
            "busiest_expert": np.float32(3.5),
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


def metrics_of(status: int, **metrics: float) -> dict:
    return {"status": np.int32(status), **{n: np.float32(v) for n, v in metrics.items()}}


def test_the_status_of_a_step_is_read_after_the_next_one_has_started():
    watch = StepWatch()
    watch.add(4, metrics_of(BAD_LOSS))
    assert watch.bad == []
    watch.add(5, metrics_of(FINE))
    assert [number for number, _ in watch.bad] == [4]
    watch.settle()
    watch.settle()
    assert len(watch.bad) == 1


def test_the_reason_of_a_jump_has_both_norms():
    jump = metrics_of(JUMP, gradient_norm=1234.5, usual_gradient_norm=1.5)
    assert reason_of(jump) == "the gradient norm jumped to 1.23e+03, and 1.5 is usual"
    assert reason_of(metrics_of(BAD_LOSS)) == "the loss is not finite"


def traces(folder):
    return list(folder.glob("plugins/profile/*/*.xplane.pb"))


def test_the_trace_covers_a_few_steps_after_the_first_ones(tmp_path):
    profile = Profile(tmp_path, wanted=True)
    step = jax.jit(lambda x: x @ x)
    x = jnp.ones((8, 8))
    lines = []
    for number in range(21, 21 + SKIPPED_STEPS + TRACED_STEPS + 3):
        assert not traces(tmp_path) or len(lines) >= SKIPPED_STEPS + TRACED_STEPS
        step(x).block_until_ready()
        lines.append(profile.count_step(number))
    assert len(traces(tmp_path)) == 1
    assert [bool(line) for line in lines].index(True) == SKIPPED_STEPS + TRACED_STEPS - 1
    assert lines[SKIPPED_STEPS + TRACED_STEPS - 1].startswith(
        f"a trace of 5 steps is in {tmp_path}"
    )
    assert profile.close() == ""


def test_a_run_that_ends_early_keeps_what_was_traced(tmp_path):
    profile = Profile(tmp_path, wanted=True)
    for step in range(SKIPPED_STEPS + 2):
        profile.count_step(step)
    assert profile.close().startswith("a trace of 2 steps")
    assert len(traces(tmp_path)) == 1


@pytest.mark.parametrize("steps", [0, SKIPPED_STEPS - 1, SKIPPED_STEPS])
def test_a_run_that_ends_before_the_first_traced_step_says_so(tmp_path, steps):
    profile = Profile(tmp_path, wanted=True)
    for step in range(steps):
        profile.count_step(step)
    assert profile.close() == f"no trace: --profile skips 5 steps, and this start had {steps}"
    assert not traces(tmp_path)
    assert Profile(tmp_path, wanted=False).close() == ""


def test_each_process_writes_its_own_file_into_one_folder(tmp_path):
    for process in (0, 3):
        profile = Profile(tmp_path, wanted=True, process=process)
        for step in range(100, 100 + SKIPPED_STEPS + TRACED_STEPS):
            profile.count_step(step)
    assert {file.parent.name for file in traces(tmp_path)} == {"step-109"}
    names = sorted(file.name.removesuffix(".xplane.pb") for file in traces(tmp_path))
    assert [name.rpartition(".")[2] for name in names] == ["process-0", "process-3"]


def test_a_trace_that_cannot_be_written_ends_no_run(tmp_path):
    (tmp_path / "plugins").write_text("a file is in the way")
    profile = Profile(tmp_path, wanted=True)
    lines = [profile.count_step(step) for step in range(SKIPPED_STEPS + TRACED_STEPS + 3)]
    (line,) = filter(None, lines)
    assert line.startswith("the trace cannot be written: ")
    assert profile.close() == ""
