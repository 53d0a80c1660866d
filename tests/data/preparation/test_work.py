"""Units of work: done once, complete or not there."""

import functools
import io
import itertools
import os
import subprocess
import sys

import pytest
from rich.console import Console

from gshard_nmt.data.preparation import work as work_module
from gshard_nmt.data.preparation.work import Unit
from gshard_nmt.errors import UserError
from tests.data.killed_work import shout
from tests.data.preparation.small_corpus import QUIET, work_folder


def run(folder, log, numbers=(0, 1, 2), function=shout, workers=1, word="unit", console=QUIET):
    call = functools.partial(function, log=str(log), word=word)
    units = [Unit(f"fr-en/{n}", functools.partial(call, number=n), n + 1) for n in numbers]
    with work_folder(folder, workers, console) as work:
        return work.run("shout", "shouting, units", units)


def test_the_results_are_in_the_order_of_the_units_and_nothing_is_done_twice(tmp_path):
    log = tmp_path / "log"

    first = run(tmp_path / "work", log)
    assert [unit.result["number"] for unit in first] == [0, 1, 2]
    assert [(u.folder / "text").read_text()[:6] for u in first] == [f"unit {n}" for n in range(3)]
    assert log.read_text().split() == ["2", "1", "0"]  # the largest first
    assert run(tmp_path / "work", log, range(4))[:3] == first
    assert log.read_text().split() == ["2", "1", "0", "3"]


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


def fail(folder, number, **others):
    (folder / "text").write_text("torn")
    if number == 1:
        raise UserError("unit 1 is wrong.")
    return shout(folder, number=number, **others)


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
    for place, file, version in (
        ("a", "x-1", 1),
        ("b", "x-1", 1),
        ("a", "x-2", 1),
        ("a", "x-1", 2),
    ):
        folder = tmp_path / place
        call = functools.partial(shout, log=folder / "clean" / file)
        with work_folder(folder) as work:
            names.add(work._folder_name(Unit("one", call, 1, version)))
    assert len(names) == 3


def test_a_line_of_progress_now_and_then_has_the_time_left(tmp_path, monkeypatch):
    stream, times = io.StringIO(), itertools.count(0, 8)
    monkeypatch.setattr(work_module.time, "monotonic", lambda: next(times))
    console = Console(file=stream, highlight=False, soft_wrap=True)
    run(tmp_path / "work", tmp_path / "log", console=console)
    assert stream.getvalue() == "shouting: 5 of 6 units, 3 s left\n"
