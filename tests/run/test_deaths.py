"""Deaths of workers: those that a restart does not cure are told apart."""

import json

import pytest

from gshard_nmt.run.checkpoint.tensor_files import COMMIT_FILE
from gshard_nmt.run.deaths import DEATHS, Cgroups, is_second, newest_steps


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/job/step\n", "job/step/memory.events"),
        ("0::/job/step\n", "memory.events"),
        ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control"),
        ("9:cpu,memory:/job\n", "memory/job/memory.oom_control"),
        ("9:cpu:/x\n0::/job\n", "unified/job/memory.events"),
    ],
)
def test_the_kernels_count_is_read_from_either_version_of_cgroups(tmp_path, membership, file):
    (tmp_path / "cgroup").write_text(membership)
    counts = tmp_path / "root" / file
    counts.parent.mkdir(parents=True)
    cgroups = Cgroups(tmp_path / "cgroup", tmp_path / "root")
    assert cgroups.oom_kills() == 0
    counts.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n")
    assert cgroups.oom_kills() == 7


def test_a_kernel_without_cgroups_counts_nothing(tmp_path):
    assert Cgroups(tmp_path / "cgroup", tmp_path / "root").oom_kills() == 0
    assert Cgroups().oom_kills() >= 0


def commit(checkpoint) -> None:
    checkpoint.mkdir(parents=True)
    (checkpoint / COMMIT_FILE).touch()


@pytest.fixture
def run(tmp_path):
    """Returns a run folder with a checkpoint of step 5."""
    (tmp_path / "data.json").write_text("{}")
    commit(tmp_path / "checkpoints" / "5")
    return tmp_path


def test_the_second_death_without_a_new_checkpoint_is_told(run):
    assert not is_second(run, "first start")
    assert is_second(run, "second start")


def test_after_the_second_death_the_count_begins_anew(run):
    assert [is_second(run, f"start {i}") for i in range(4)] == [False, True, False, True]


def test_a_new_checkpoint_begins_the_count_anew(run):
    assert not is_second(run, "first start")
    commit(run / "checkpoints" / "10")
    assert not is_second(run, "second start")
    assert is_second(run, "third start")


def test_workers_that_die_in_the_same_start_count_once(run):
    assert not is_second(run, "first start")
    assert not is_second(run, "first start")


def test_nothing_is_written_to_a_folder_that_is_no_run_folder(tmp_path):
    assert not is_second(tmp_path, "first start")
    assert not is_second(tmp_path, "second start")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "[]", '{"checkpoints": 3}'])
def test_a_damaged_count_begins_anew(run, content):
    (run / DEATHS).write_text(content)
    assert not is_second(run, "first start")
    assert json.loads((run / DEATHS).read_text())["attempt"] == "first start"


def test_only_committed_checkpoints_count(tmp_path):
    for name in ("checkpoints/5", "checkpoints/10", "checkpoints/20.bak", "fr/checkpoints/30"):
        commit(tmp_path / name)
    (tmp_path / "checkpoints" / "15").mkdir()
    assert newest_steps(tmp_path) == {"checkpoints": 10, "fr/checkpoints": 30}


def test_the_candidates_of_a_search_count_too(tmp_path):
    commit(tmp_path / "candidates" / "fr" / "small" / "checkpoints" / "40")
    assert newest_steps(tmp_path) == {"candidates/fr/small/checkpoints": 40}
