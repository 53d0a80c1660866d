"""Units of work: done once, complete or not there."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gshard_nmt.data.preparation.work import Stage, Unit, WorkFolder, key_of
from gshard_nmt.data.worker_pool import WorkerPool
from gshard_nmt.errors import UserError
from tests.data.killed_work import Silent, shout


class Recording(Silent):
    def __init__(self):
        self.events = []

    def begin(self, about, total, done):
        self.events.append((about, total, done))

    def advance(self, rows):
        self.events.append(rows)


def stage_of(log, numbers=(0, 1, 2), work=shout, version=1):
    units = [Unit(f"fr-en/{n}", key_of(version, n), (str(log), n), n + 1) for n in numbers]
    return Stage("shout", "shouting", work, units)


def run(folder, stage, watch=None, workers=1):
    with WorkerPool(workers) as pool, WorkFolder(folder, pool) as place:
        return place.run(stage, watch or Silent())


def test_the_results_are_in_the_order_of_the_units_and_nothing_is_done_twice(tmp_path):
    log, watch = tmp_path / "log", Recording()
    first = run(tmp_path / "work", stage_of(log))
    assert [unit.result["number"] for unit in first] == [0, 1, 2]
    assert [(unit.folder / "text").read_text()[:6] for unit in first] == [
        f"unit {n}" for n in range(3)
    ]
    assert log.read_text().split() == ["2", "1", "0"]  # the largest first
    assert run(tmp_path / "work", stage_of(log, range(4)), watch=watch)[:3] == first
    assert log.read_text().split() == ["2", "1", "0", "3"]
    assert watch.events == [("shouting", 10, 6), 4]


def test_a_unit_of_another_key_is_done_again_and_the_old_files_can_go(tmp_path):
    log = tmp_path / "log"
    run(tmp_path / "work", stage_of(log))
    stage = stage_of(log, [0], version=2)
    run(tmp_path / "work", stage)
    assert log.read_text().split() == ["2", "1", "0", "0"]
    with WorkerPool(1) as pool, WorkFolder(tmp_path / "work", pool) as place:
        place.keep_only(stage)
        assert os.listdir(tmp_path / "work" / "shout") == [stage.units[0].folder]
        place.remove()
    assert os.listdir(tmp_path) == ["log"]


def test_killed_at_any_place_the_work_goes_on_without_a_unit_lost_or_torn(tmp_path):
    words = [sys.executable, "-m", "tests.data.killed_work", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    places, resumed = map(int, done.stdout.split())
    assert places > 20
    assert resumed > places / 2


@pytest.mark.parametrize("damage", ['{"number"', "[]", ""])
def test_a_damaged_result_is_made_again(tmp_path, damage):
    log = tmp_path / "log"
    (first, *_) = run(tmp_path / "work", stage_of(log))
    (first.folder / "result.json").write_text(damage)
    (again, *_) = run(tmp_path / "work", stage_of(log))
    assert again.result == {"number": 0}


def fail(task, folder):
    (folder / "text").write_text("torn")
    if task[1] == 1:
        raise UserError("unit 1 is wrong.")
    return shout(task, folder)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_leaves_the_finished_units_and_no_half_ones(tmp_path, workers, monkeypatch):
    monkeypatch.setattr("gshard_nmt.data.preparation.work._SMALL", 0)
    stage = stage_of(tmp_path / "log", work=fail)
    with pytest.raises(UserError, match=r"^unit 1 is wrong\.$"):
        run(tmp_path / "work", stage, workers=workers)
    for name in os.listdir(tmp_path / "work" / "shout"):
        assert sorted(os.listdir(tmp_path / "work" / "shout" / name)) == ["result.json", "text"]
    assert stage.units[1].folder not in os.listdir(tmp_path / "work" / "shout")


def test_two_programs_do_not_work_in_one_folder(tmp_path):
    with (
        WorkerPool(1) as pool,
        WorkFolder(tmp_path, pool),
        pytest.raises(UserError, match="another program has locked"),
        WorkFolder(tmp_path, pool),
    ):
        pass


def test_a_folder_that_cannot_be_made_keeps_no_lock(tmp_path, monkeypatch):
    def full(path, *arguments, **words):
        raise OSError(28, "No space left on device")

    with WorkerPool(1) as pool:
        WorkFolder(tmp_path / "work", pool).__enter__().__exit__()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "mkdir", lambda p, **w: None if p.exists() else full(p))
            with pytest.raises(OSError, match="No space left"):
                WorkFolder(tmp_path / "work", pool).__enter__()
        with WorkFolder(tmp_path / "work", pool):
            pass


def test_names_of_units_become_names_of_folders():
    unit = Unit("zh-Hans-en/../träin", "ab" * 32, None)
    assert unit.folder == "zh-Hans-en_.._tr_in-abababababababab"


def threshold(task, folder):
    if task:
        raise ValueError
    return {"objects": gc.get_threshold()[0]}


@pytest.mark.parametrize("fails", [False, True])
def test_only_a_unit_lets_python_look_less_often_for_cycles(tmp_path, fails):
    usual = gc.get_threshold()
    stage = Stage("look", "looking", threshold, [Unit("one", key_of(1), fails)])
    if fails:
        with pytest.raises(ValueError):  # noqa: PT011
            run(tmp_path / "work", stage)
    else:
        assert run(tmp_path / "work", stage)[0].result["objects"] > 100 * usual[0]
    assert gc.get_threshold() == usual
