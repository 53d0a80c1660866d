"""The log of a run, its lines on a terminal, and its interruption."""

import itertools
import json
import signal
import types

import pytest

from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.hangup import Stopped
from gshard_nmt.run.log.progress import Interrupt, MetricsLog, TrainingProgress

METRICS = {
    "nll": 1.5,
    "aux_loss": 1.0,
    "overflow_fraction": 0.25,
    "tokens_per_second": 12345.6,
    "seconds_per_step": 2.0,
    "share_input": 0.25,
    "share_save": 0.01,
}


def processes(count: int = 1, stops_at: int = 0):
    """The processes of a run; the runtime tells all of them to stop after `stops_at` steps."""
    answers = (call == stops_at for call in itertools.count(1))
    return types.SimpleNamespace(count=count, should_stop=lambda: next(answers))


def lines_of(run: RunFolder) -> list[dict]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def test_a_resumed_run_drops_the_lines_after_its_checkpoint(tmp_path):
    run = RunFolder(tmp_path)
    run.metrics.write_text("".join(f'{{"step": {step}}}\n' for step in (5, 10, 10, 15, 20)))
    log = MetricsLog(run, step=10)
    assert [line["step"] for line in lines_of(run)] == [5, 10, 10]
    log.write(11, {"nll": 1.0})
    log.close()
    assert lines_of(run)[-1] == {"step": 11, "nll": 1.0}


def test_only_the_process_that_writes_touches_the_log(tmp_path):
    run = RunFolder(tmp_path)
    log = MetricsLog(run, step=0, writes=False)
    log.write(1, {"nll": 1.0})
    log.write_event(1, "divergence", {})
    log.close()
    assert not list(tmp_path.iterdir())


def test_a_run_that_goes_back_drops_the_lines_after_its_checkpoint(tmp_path):
    run = RunFolder(tmp_path)
    log = MetricsLog(run, step=0)
    for step in (5, 10, 15):
        log.write(step, {"nll": 1.0})
    log.go_back(10)
    log.write_event(10, "divergence", {"reason": "the loss is not finite"})
    log.write(15, {"nll": 2.0})
    log.close()
    assert lines_of(run) == [
        {"step": 5, "nll": 1.0},
        {"step": 10, "nll": 1.0},
        {"step": 10, "event": "divergence", "reason": "the loss is not finite"},
        {"step": 15, "nll": 2.0},
    ]


def test_a_number_that_is_not_finite_is_null_in_the_log(tmp_path):
    log = MetricsLog(RunFolder(tmp_path), step=0)
    log.write(1, {"loss": float("nan"), "nll": 1.0})
    log.close()
    assert lines_of(RunFolder(tmp_path)) == [{"step": 1, "loss": None, "nll": 1.0}]


def test_the_first_ctrl_c_asks_to_stop_and_the_second_stops_at_once():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupt(processes()) as interrupt:
        assert not interrupt.stops_now()
        signal.raise_signal(signal.SIGINT)
        assert interrupt.stops_now()
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
        assert interrupt.stops_now()


def work_until_sigterm(interrupt: Interrupt) -> None:
    with interrupt.stops_at_once():
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal was not heard")


@pytest.mark.parametrize("is_early", [False, True])
def test_a_signal_ends_work_that_can_be_done_again_at_once(is_early):
    with Interrupt(processes()) as interrupt:
        if is_early:
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped):
            work_until_sigterm(interrupt)
        assert interrupt.stops_now()
        signal.raise_signal(signal.SIGTERM)


def test_several_processes_leave_signals_to_the_runtime_and_stop_at_its_step():
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(processes(count=2, stops_at=3)) as interrupt:
        assert signal.getsignal(signal.SIGINT) is before
        assert [interrupt.stops_now() for _ in range(3)] == [False, False, True]


def test_without_a_terminal_each_logged_step_is_one_line(capsys):
    with TrainingProgress("demo") as bar:
        bar.note("starting [x]")
        bar.advance(50)
        bar.show(50, 200, METRICS)
    assert capsys.readouterr().err.splitlines() == [
        "starting [x]",
        "step 50/200  nll 1.500  aux 1.00  dropped 25.0%  12,346 tokens/s  waits for input 25%  "
        "2.000 s/step  5 min left",
    ]


def test_a_quiet_process_shows_nothing(capsys):
    with TrainingProgress("demo", quiet=True) as bar:
        bar.note("starting")
        bar.show(50, 200, METRICS)
    assert capsys.readouterr().err == ""
