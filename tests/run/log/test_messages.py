"""A run says how it starts and how it ends."""

from pathlib import Path

import pytest

from gshard_nmt.run.log import messages
from gshard_nmt.run.log.clock import TimeLimit
from gshard_nmt.run.log.counters import RunCounters
from gshard_nmt.run.patience import Patience
from gshard_nmt.settings.config import Train, configs_folder
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.mesh import Mesh

RUN = Path("runs/demo")
COUNTERS = RunCounters(step=7, tokens={"fr": 1000, "de": 234}, seconds=12.4)


def test_a_start_names_the_mesh_and_the_step_to_go_on_from():
    mesh = Mesh(("x", "y"), (4, 2))
    assert messages.starting(RUN, RunCounters(), mesh) == (
        "starting runs/demo on the mesh x=4 x y=2; compiling the training step"
    )
    assert messages.starting(RUN, COUNTERS, mesh).startswith("resuming runs/demo at step 7 on")


def test_each_ending_has_its_message():
    same = "; the same command goes on from there"
    assert messages.interrupted(RUN, COUNTERS) == f"saved runs/demo at step 7{same}"
    assert messages.out_of_time(RUN, COUNTERS, TimeLimit(2.5)) == (
        f"saved runs/demo at step 7, because the 2.5 minutes of --max_minutes are over{same}"
    )
    other = messages.out_of_time(RUN, COUNTERS, TimeLimit(2.5, "--baseline_minutes"))
    assert other.endswith("the 2.5 minutes of --baseline_minutes are over")
    assert messages.out_of_patience(Train(patience=3), Patience("dev_nll", 1.25, {}, 3)) == (
        "3 validations in a row without a better dev_nll than 1.250: the run ends early "
        "(Train.patience)"
    )
    assert messages.finished(RUN, COUNTERS) == "runs/demo: 7 steps, 1,234 tokens, 12 s of training"


DEMO = load_config("demo")


@pytest.mark.parametrize(
    ("changes", "has_dev_text", "beginning"),
    [
        (
            {"train": {"patience": 3, "dev_every": 0}},
            True,
            "Train.patience has no effect: Train.dev_",
        ),
        (
            {"train": {"patience": 1}},
            False,
            "Train.patience has no effect: the prepared data has no",
        ),
        (
            {"train": {"patience": 2}},
            True,
            "Train.patience is 2, but the run validates only 2 times",
        ),
        ({"train": {"tokens": 10**9}}, True, "Train.tokens is 1,000,000,000, but the run ends at"),
        (
            {"train": {"keep_every": 1300}},
            True,
            "Train.keep_every is 1300 and Train.checkpoint_every",
        ),
        ({"train": {"steps": 999}}, True, "Optimizer.cooldown_steps is 1000, but the run ends at"),
        (
            {"optimizer": {"linear_warmup_steps": 2500}},
            True,
            "Optimizer.linear_warmup_steps is 2500,",
        ),
        (
            {"data": {"subword_sampling_target": True}},
            True,
            "Data.subword_sampling_target has no effect",
        ),
        ({"train": {"patience": 1}}, True, ""),
        ({"train": {"tokens": 10**6}}, True, ""),
    ],
)
def test_a_setting_without_effect_is_said(changes, has_dev_text, beginning):
    lines = list(messages.void_settings(DEMO.replace(**changes), has_dev_text))
    assert [line[: len(beginning)] for line in lines] == ([beginning] if beginning else [])


@pytest.mark.parametrize("name", [path.stem for path in configs_folder().glob("experiments/*.gin")])
def test_the_settings_of_each_experiment_have_an_effect(name):
    assert not list(messages.void_settings(load_config(name), has_dev_text=True))


def test_settings_of_prepare_alone_are_named():
    keys = [("Cleaning", "ratio"), ("Data", "source_model"), ("Data", "rows"), ("Train", "steps")]
    lines = list(messages.void_settings(DEMO, True, set_by_user=keys))
    assert [line.partition(" has no effect")[0] for line in lines] == [
        "Cleaning.ratio",
        "Data.source_model",
    ]
