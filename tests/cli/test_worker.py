"""The command line of a worker, what workers have in common, and how they end."""

import subprocess
import sys

import pytest

from gshard_nmt.cli import worker
from gshard_nmt.cli.baseline_flags import check_baselines
from gshard_nmt.cli.commands import TRAIN
from gshard_nmt.cli.flags import parse_flags
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.processes import Job, Processes

FLAGS = ["--config=demo", "--gin=Train.steps = 5", "--gin=Data.rows = 8", "--workdir=a run"]


def test_the_worker_gets_all_flags_and_the_numbers_that_the_cluster_named(tmp_path):
    values = parse_flags(TRAIN, [*FLAGS, f"--data={tmp_path}"])
    words = worker.command_line(values, Processes("h:1", 4, 2, 30))
    assert words[:4] == [sys.executable, "-m", "gshard_nmt", "train"]
    again = parse_flags(TRAIN, words[4:])
    for name in values:
        if name not in ("coordinator", "num_processes", "process_id", "peer_timeout"):
            assert again[name].value == values[name].value, name
    assert (again.coordinator, again.num_processes, again.process_id) == ("h:1", 4, 2)
    assert again.peer_timeout == 30
    check_baselines(again)  # all of its flags are on the command line, with their defaults


def test_switches_and_missing_values_are_passed_on():
    assert list(worker._words("profile", True)) == ["--profile"]
    assert list(worker._words("profile", False)) == ["--noprofile"]
    assert list(worker._words("max_minutes", None)) == []
    assert list(worker._words("gin", ["a = 1", "b = 2"])) == ["--gin=a = 1", "--gin=b = 2"]


def test_settings_data_and_packages_are_what_processes_have_in_common(tmp_path):
    values = parse_flags(TRAIN, [*FLAGS, f"--data={tmp_path}"])
    config = load_config("demo", values.gin)
    before = worker.identity(values, config)
    assert before["Train.steps"] == "5"
    assert before["--workdir"] == "a run"
    (tmp_path / "manifest.json").write_text("{}")
    changed = config.replace(train={"steps": 6})
    after = worker.identity(values, changed)
    different = {name for name in before if before[name] != after[name]}
    assert different == {"Train.steps", "manifest.json of --data"}
    assert before.keys() == after.keys()


LONG = tuple(f"{tag}-Latn-x-region{tag}" for tag in ("aa", "bb", "cc", "dd", "ee", "ff"))


@pytest.mark.parametrize("decodes", [False, True])
def test_every_setting_is_compared_however_long_it_is(tmp_path, decodes):
    """The text of a config has such settings on several lines."""
    values = parse_flags(TRAIN, [*FLAGS, f"--data={tmp_path}"])
    phases = [{"from_step": 0}, {"from_step": 4, "weights": dict.fromkeys(LONG, 1.0)}]
    others = [phases[0], {"from_step": 4, "weights": dict.fromkeys(LONG, 1.0) | {LONG[-1]: 2.0}}]
    for name, old, new in (
        ("schedule", phases, others),
        ("languages", LONG, (*LONG[:-1], "fr")),
    ):
        before, after = (
            worker.decoding_identity(values, config, Job("gshard-decode", trains=False))
            if decodes
            else worker.identity(values, config)
            for config in (load_config("demo").replace(data={name: v}) for v in (old, new))
        )
        assert {key for key in before if before[key] != after[key]} == {f"Data.{name}"}


WORKER = """
import atexit, os, sys
from gshard_nmt.cli import worker
from gshard_nmt.cli.baseline_flags import check_baselines
from gshard_nmt.spmd.processes import Job
if {watched}:
    pipe, _ = os.pipe()
    os.environ["GSHARD_NMT_WATCHED"] = str(pipe)
assert worker.is_worker(Job("gshard-x", {trains})) == {watched}
atexit.register(print, "waits for the others")
{end}
"""


@pytest.mark.parametrize(
    ("watched", "trains", "end", "code", "waits"),
    [
        (True, True, "worker.leave(2)", 2, False),
        (True, True, "worker.leave(75)", 75, False),
        (True, True, "worker.leave(0)", 0, True),
        (True, True, "worker.leave(130)", 130, True),
        # Only training saves after an interruption, together with the others.
        (True, False, "worker.leave(130)", 130, False),
        (True, False, "worker.leave(0)", 0, True),
        (True, True, "raise ValueError('a bug')", 1, False),
        (False, True, "worker.leave(2)", 2, True),
    ],
)
def test_a_worker_with_an_error_does_not_wait_for_the_others(watched, trains, end, code, waits):
    program = WORKER.format(watched=watched, trains=trains, end=end)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout) == (code, "waits for the others\n" if waits else "")
    assert ended.stderr.endswith("ValueError: a bug\n" if code == 1 else "")
