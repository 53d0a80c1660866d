"""The log of a run, its lines on a terminal, and its interruption."""

import json
import signal
import types

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.run import progress
from gshard_nmt.run.counters import RunCounters
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.progress import Interrupt, MetricsLog, TrainingProgress

METRICS = {"loss": 2.0, "nll": 1.5, "aux_loss": 1.0, "overflow_fraction": 0.25, "tokens": 40.0}


def processes(count: int = 1, stops_at: int = 0):
    """The processes of a run; the runtime tells all of them to stop after `stops_at`."""
    return types.SimpleNamespace(count=count, should_stop=lambda step: step == stops_at)


def counted(counters: RunCounters, tokens: int) -> RunCounters:
    """Counts one step of this number of tokens."""
    counters.count({"fr": tokens})
    counters.add_counts_of_all_processes(lambda counts: counts)
    return counters


@pytest.fixture
def clock(monkeypatch):
    clock = types.SimpleNamespace(now=100.0)
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(progress, "time", clock)
    return clock


def lines_of(run: RunFolder) -> list[dict]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def test_a_line_has_the_speed_since_the_last_line(tmp_path, clock):
    run, counters = RunFolder(tmp_path), RunCounters(step=4, tokens={"fr": 1000})
    log = MetricsLog(run, counters)
    clock.now += 60  # compilation
    log.restart_clock(counters)
    clock.now += 2
    counted(counters, 100)
    log.step_metrics(counted(counters, 100), METRICS)
    clock.now += 4
    values = log.step_metrics(counted(counters, 100), METRICS)
    log.close()
    lines = lines_of(run)
    assert lines[1] == {"step": 7, **values}
    assert [line["step"] for line in lines] == [6, 7]
    assert [line["tokens_per_second"] for line in lines] == [100, 25]
    # The tokens of the run, and the target tokens of this step.
    assert [line["tokens"] for line in lines] == [1200, 1300]
    assert [line["target_tokens"] for line in lines] == [40, 40]
    assert lines[0]["loss"] == 2.0
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_resumed_run_drops_the_lines_after_its_checkpoint(tmp_path):
    run = RunFolder(tmp_path)
    run.metrics.write_text("".join(f'{{"step": {step}}}\n' for step in (5, 10, 10, 15, 20)))
    log = MetricsLog(run, RunCounters(step=10))
    assert [line["step"] for line in lines_of(run)] == [5, 10, 10]
    log.write(11, {"nll": 1.0})
    log.close()
    assert lines_of(run)[-1] == {"step": 11, "nll": 1.0}


def test_only_the_process_that_writes_touches_the_log(tmp_path):
    run = RunFolder(tmp_path)
    log = MetricsLog(run, RunCounters(), writes=False)
    log.write(1, {"nll": 1.0})
    log.step_metrics(counted(RunCounters(), 10), METRICS)
    log.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_the_run_with_advice(tmp_path, loss):
    log = MetricsLog(RunFolder(tmp_path), RunCounters(), writes=False)
    with pytest.raises(
        UserError, match=rf"the loss is {loss} at step 1: .* Lower Optimizer\.learn"
    ):
        log.step_metrics(counted(RunCounters(), 10), {**METRICS, "loss": loss})


def test_the_first_ctrl_c_asks_to_stop_and_the_second_stops_at_once():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupt(processes()) as interrupt:
        assert not interrupt.stops_after(1)
        signal.raise_signal(signal.SIGINT)
        assert interrupt.stops_after(2)
        with pytest.raises(
            KeyboardInterrupt, match="stopped at once; start the run again to continue"
        ):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_to_stop_however_often_it_comes(number):
    """SIGHUP comes if an SSH connection is lost."""
    with Interrupt(processes()) as interrupt:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert interrupt.stops_after(1)


def test_several_processes_leave_signals_to_the_runtime_and_stop_at_its_step():
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(processes(count=2, stops_at=3)) as interrupt:
        assert signal.getsignal(signal.SIGINT) is before
        assert [interrupt.stops_after(step) for step in (1, 2, 3)] == [False, False, True]


def test_without_a_terminal_each_logged_step_is_one_line(capsys):
    with TrainingProgress("demo") as bar:
        bar.note("starting [x]")
        bar.advance(50, 200)
        bar.show(50, 200, {**METRICS, "tokens_per_second": 12345.6})
    assert capsys.readouterr().err.splitlines() == [
        "starting [x]",
        "step 50/200  nll 1.500  aux 1.00  dropped 25.0%  12,346 tokens/s",
    ]


def test_a_quiet_process_shows_nothing(capsys):
    with TrainingProgress("demo", quiet=True) as bar:
        bar.note("starting")
        bar.show(50, 200, {**METRICS, "tokens_per_second": 1.0})
    assert capsys.readouterr().err == ""
