"""SIGKILL at random moments: a run that was killed ends in the state of one that was not.

The moments are of four kinds: anywhere in the life of a process, while it imports, restores, trains and
saves; between the start of a save and its commit; just after a commit, when older checkpoints are
removed; and while the run folder is made or its lock is taken. Parameters, optimizer state, the place in
the data, the token counts and the logged losses must be equal to the bit.
"""

import contextlib
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

from gshard_nmt.run.checkpoint.tensor_files import COMMIT_FILE
from tests.soak.campaign import Clock, Report, generator, last_lines, say
from tests.soak.small_run import final_state, prepared_folder, remove, start, to_the_end

CHANGES = {"Train.steps": 60, "Train.checkpoint_every": 3, "Train.dev_every": 0}
SAVE_SECONDS = 0.3
"""A save takes about this long on an idle machine."""
MOST_KILLS = 12
"""After these many kills a run may end, so that every campaign compares some states."""


def campaign(clock: Clock, seed: int) -> Report:
    """Kills one run after another until the time is over, or `clock.cases_left` is used up."""
    root = prepared_folder()
    runs = kills = unfinished = 0
    defects: list[str] = []
    try:
        # The first run compiles the programs. The second one starts from them, as killed runs do.
        for name in ("first", "undisturbed"):
            seconds, failure = to_the_end(root, name, **CHANGES)
            if failure:
                return Report("the undisturbed run failed", [failure])
        expected = final_state(root / "undisturbed")
        defects += _differences(final_state(root / "first"), expected, "a second undisturbed run")
        while runs == 0 or not clock.is_over():  # at least one comparison, however slow the machine
            name = f"killed_{runs}"
            most = min(MOST_KILLS, clock.cases_left)
            count, in_saves, failure = _killed(root, name, generator(seed, runs), seconds, most)
            kills, unfinished = kills + count, unfinished + in_saves
            clock.count(count)
            label = f"run {runs}, killed {count} times"
            if failure:
                defects.append(f"{label}: {failure}")
            else:
                defects += _differences(final_state(root / name), expected, label)
            runs += 1
            say(
                f"kill: {runs} runs, {kills} kills, {unfinished} of them before a commit, "
                f"{len(defects)} defects; {clock.left:.0f} s left"
            )
            remove(root / name)
    finally:
        remove(root)
    tried = (
        f"{runs} runs were killed {kills} times, {unfinished} of them between the start of a save and "
        "its commit, and compared with an undisturbed one to the bit"
    )
    return Report(tried, defects)


def _killed(
    root: Path, name: str, numbers: random.Random, seconds: float, most: float
) -> tuple[int, int, str]:
    """Trains a run with at most `most` kills; returns them, those during a save, and what went wrong."""
    kills = in_saves = 0
    while kills < most:
        began = time.time()
        process = start(root, name, **CHANGES)
        _wait_for_a_moment(process, root / name, numbers, seconds)
        if process.poll() is None:
            process.kill()
            process.wait()
            kills += 1
            in_saves += bool(_unfinished(root / name / "checkpoints", began))
            continue
        code, said = process.returncode, last_lines((root / "log").read_text())
        return kills, in_saves, f"exit code {code}\n{said}" if code else ""
    return kills, in_saves, to_the_end(root, name, **CHANGES)[1]


def _wait_for_a_moment(
    process: "subprocess.Popen[bytes]", workdir: Path, numbers: random.Random, seconds: float
) -> None:
    """Returns at a random moment of a process's life, or when it has ended."""
    checkpoints = workdir / "checkpoints"
    # A little more than the whole life, so that some processes end by themselves.
    longest = 1.1 * seconds
    place = numbers.choice(["anywhere", "save", "commit", "folder"])
    if place == "anywhere":
        _sleep(process, numbers.uniform(0, longest))
        return
    number = numbers.randint(1, 4)  # of the saves or commits that are waited for
    began = time.time()
    look = {
        "save": lambda: _unfinished(checkpoints, began),
        "commit": lambda: _committed(checkpoints),
        "folder": lambda: _entries(workdir),
    }[place]
    before, seen = look(), set()
    ends = time.monotonic() + longest
    while len(seen := seen | look() - before) < (1 if place == "folder" else number):
        if process.poll() is not None or time.monotonic() > ends:
            return
        time.sleep(0.001)
    _sleep(process, numbers.uniform(0, SAVE_SECONDS if place == "save" else 0.05))
    # If that was too long, the start of the next save will do.
    while place == "save" and not look() and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.001)


def _sleep(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Returns after some time, or when the process has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def _unfinished(checkpoints: Path, since: float) -> set[str]:
    """Returns the names of the checkpoints without a commit that were written to since a time.

    An older one is what a killed process has left. One before the last commit is being removed.
    """
    committed = max(map(int, _committed(checkpoints)), default=-1)
    unfinished = set()
    for name in _entries(checkpoints):
        folder = checkpoints / name
        with contextlib.suppress(FileNotFoundError):
            is_new = folder.stat().st_mtime >= since and int(name) > committed
            if is_new and not (folder / COMMIT_FILE).exists():
                unfinished.add(name)
    return unfinished


def _committed(checkpoints: Path) -> set[str]:
    return {name for name in _entries(checkpoints) if (checkpoints / name / COMMIT_FILE).exists()}


def _entries(folder: Path) -> set[str]:
    """Returns the names in a folder; none if it is not there."""
    return set(os.listdir(folder)) if folder.is_dir() else set()


def _differences(state: dict[str, Any], expected: dict[str, Any], label: str) -> list[str]:
    """Returns a defect if the final state of a run is not the expected one."""
    names = sorted(state.keys() | expected.keys())
    different = [name for name in names if state.get(name) != expected.get(name)]
    return [f"{label}: {different} differ"] if different else []
