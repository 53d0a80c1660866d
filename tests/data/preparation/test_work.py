"""Units of work: done once, complete or not there."""

import os
import subprocess
import sys

import pytest

from gshard_nmt.data.preparation.work import Unit
from gshard_nmt.errors import UserError
from tests.data.killed_work import Shouting, shout
from tests.data.preparation.small_corpus import work_folder


class Recording:
    def __init__(self):
        self.events = []

    def begin(self, about, total, done):
        self.events.append((about, total, done))

    def advance(self, rows):
        self.events.append(rows)

    def end(self):
        pass


def run(folder, log, numbers=(0, 1, 2), function=shout, watch=None, workers=1, word="unit"):
    units = [Unit(f"fr-en/{n}", Shouting(str(log), n, word), n + 1) for n in numbers]
    with work_folder(folder, workers, watch) as work:
        return work.run("shout", "shouting", function, units)


def test_the_results_are_in_the_order_of_the_units_and_nothing_is_done_twice(tmp_path):
    log, watch = tmp_path / "log", Recording()
    first = run(tmp_path / "work", log)
    assert [unit.result["number"] for unit in first] == [0, 1, 2]
    assert [(unit.folder / "text").read_text()[:6] for unit in first] == [
        f"unit {n}" for n in range(3)
    ]
    assert log.read_text().split() == ["2", "1", "0"]  # the largest first
    assert run(tmp_path / "work", log, range(4), watch=watch)[:3] == first
    assert log.read_text().split() == ["2", "1", "0", "3"]
    assert watch.events == [("shouting", 10, 6), 4]


def test_a_unit_of_another_task_is_done_again_and_the_files_of_others_go(tmp_path):
    log, folder = tmp_path / "log", tmp_path / "work"
    run(folder, log)
    (new,) = run(folder, log, [0], word="other")
    assert log.read_text().split() == ["2", "1", "0", "0"]
    assert os.listdir(folder / "shout") == [new.folder.name]
    with work_folder(folder) as work:
        work.remove()
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
    (first, *_) = run(tmp_path / "work", log)
    (first.folder / "result.json").write_text(damage)
    (again, *_) = run(tmp_path / "work", log)
    assert again.result == {"number": 0}


def fail(task, folder):
    (folder / "text").write_text("torn")
    if task.number == 1:
        raise UserError("unit 1 is wrong.")
    return shout(task, folder)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_leaves_the_finished_units_and_no_half_ones(tmp_path, workers, monkeypatch):
    monkeypatch.setattr("gshard_nmt.data.preparation.work._SMALL", 0)
    with pytest.raises(UserError, match=r"^unit 1 is wrong\.$"):
        run(tmp_path / "work", tmp_path / "log", function=fail, workers=workers)
    for name in os.listdir(tmp_path / "work" / "shout"):
        assert not name.startswith("fr-en_1")
        assert sorted(os.listdir(tmp_path / "work" / "shout" / name)) == ["result.json", "text"]


def test_two_programs_do_not_work_in_one_folder(tmp_path):
    with (
        work_folder(tmp_path),
        pytest.raises(UserError, match="another program has locked"),
        work_folder(tmp_path),
    ):
        pass


def test_the_key_of_a_unit_has_the_keys_of_its_files_and_not_the_place_of_the_folder(tmp_path):
    names = set()
    for place, file in (("a", "x-1"), ("b", "x-1"), ("a", "x-2")):
        folder = tmp_path / place
        task = Shouting(folder / "clean" / file, 1)
        with work_folder(folder) as work:
            names.add(work._folder_name(Unit("one", task)))
    assert len(names) == 2
