"""The log of a run, its lines on a terminal, and its interruption."""

import itertools
import signal
import types
from pathlib import Path

import pytest

from gshard_nmt.run import progress as messages
from gshard_nmt.run.progress import Interrupt, TimeLimit, TrainingProgress
from gshard_nmt.run.together import Stopped
from gshard_nmt.run.training_state import RunCounters
from gshard_nmt.settings.config import configs_folder
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.mesh import Mesh

METRICS = {
    "nll": 1.5,
    "aux_loss": 1.0,
    "overflow_fraction": 0.25,
    "tokens_per_second": 12345.6,
    "seconds_per_step": 2.0,
    "share_input": 0.25,
}


def processes(count: int = 1, stops_at: int = 0):
    """The processes of a run; the runtime tells all of them to stop after `stops_at` steps."""
    answers = (call == stops_at for call in itertools.count(1))
    return types.SimpleNamespace(count=count, should_stop=lambda: next(answers))


def test_a_time_limit_of_0_never_ends(now):
    limit, no_limit = TimeLimit(2), TimeLimit()
    now.now += 119
    assert not limit.is_over()
    now.now += 2
    assert limit.is_over()
    assert not no_limit.is_over()


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
    progress = TrainingProgress("demo")
    with progress.bar:
        progress.note("starting [x]")
        progress.advance(50)
        progress.show(50, 200, METRICS)
    assert capsys.readouterr().err.splitlines() == [
        "starting [x]",
        "step 50/200  nll 1.500  aux 1.00  dropped 25.0%  12,346 tokens/s  waits for input 25%  "
        "2.000 s/step  5 min left",
    ]


def test_a_quiet_process_shows_nothing(capsys):
    progress = TrainingProgress("demo", quiet=True)
    with progress.bar:
        progress.note("starting")
        progress.show(50, 200, METRICS)
    assert capsys.readouterr().err == ""


RUN = Path("runs/demo")
COUNTERS = RunCounters(step=7, tokens={"fr": 1000, "de": 234}, seconds=12.4)


def test_a_start_names_the_mesh_and_the_step_to_go_on_from():
    mesh = Mesh(("x", "y"), (4, 2))
    assert messages.starting(RUN, RunCounters(), mesh) == (
        "starting runs/demo on the mesh x=4 x y=2; compiling the training step"
    )
    assert messages.starting(RUN, COUNTERS, mesh).startswith("resuming runs/demo at step 7 on")


DEMO = load_config("demo")


VOID = [
    ({"train": {"patience": 3, "dev_every": 0}}, "Train.patience has no effect: Train.dev_"),
    ({"optimizer": {"linear_warmup_steps": 2500}}, "Optimizer.linear_warmup_steps is 2500,"),
    ({"train": {"patience": 1}}, ""),
]


@pytest.mark.parametrize(("changes", "beginning"), VOID)
def test_a_setting_without_effect_is_said(changes, beginning):
    lines = list(messages.void_settings(DEMO.replace(**changes)))
    assert [line[: len(beginning)] for line in lines] == ([beginning] if beginning else [])


@pytest.mark.parametrize("name", [path.stem for path in configs_folder().glob("experiments/*.gin")])
def test_the_settings_of_each_experiment_have_an_effect(name):
    assert not list(messages.void_settings(load_config(name)))


def test_settings_of_prepare_alone_are_named():
    keys = [("Cleaning", "ratio"), ("Data", "rows"), ("Train", "steps")]
    lines = list(messages.void_settings(DEMO, keys))
    assert [line.partition(" has no effect")[0] for line in lines] == ["Cleaning.ratio"]
