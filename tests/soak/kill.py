"""SIGKILL at random moments: a run that was killed ends in the state of one that was not.

The moments are of four kinds: anywhere in the life of a process, while it imports, restores, trains and
saves; between the start of a save and its commit; just after a commit, when older checkpoints are
removed; and while the run folder is made or its lock is taken. Parameters, optimizer state, the place in
the data, the token counts and the logged losses must be equal to the bit.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

from gshard_nmt.run.checkpoint.tensor_files import COMMIT_FILE
from tests.soak.campaign import Clock, Report, generator, last_lines, say
from tests.soak.small_run import FinalState, abort, prepared_folder, remove, start

CHANGES = {"Train.steps": 60, "Train.checkpoint_every": 3, "Train.dev_every": 0}
TIMEOUT = 300
MOST_KILLS = 12
"""After these many kills a run may end, so that every campaign compares some states."""


def campaign(clock: Clock, seed: int) -> Report:
    """Kills one run after another until the time is over, or `clock.cases_left` is used up."""
    root = prepared_folder()
    log = root / "log"
    runs = kills = unfinished = 0
    defects: list[str] = []
    try:
        _, failure = _to_the_end(root, "first", log)
        save_seconds: list[float] = []
        if not failure:
            # A second run starts from the compiled programs of the first, as killed runs do.
            seconds, failure = _to_the_end(root, "undisturbed", log, save_seconds)
        if failure:
            return Report("the undisturbed run failed", [failure])
        expected = FinalState.read(root / "undisturbed")
        defects += _compare(root / "first", expected, "a second undisturbed run")
        save = sorted(save_seconds)[len(save_seconds) // 2]
        say(
            f"kill: an undisturbed run takes {seconds:.1f} s, a save {1000 * save:.0f} ms; "
            f"{len(expected.arrays)} arrays"
        )
        while runs == 0 or not clock.is_over():  # at least one comparison, however slow the machine
            name = f"killed_{runs}"
            log.write_text("")
            most = min(MOST_KILLS, clock.cases_left)
            count, in_saves, failure = _killed(
                root, name, log, generator(seed, runs), seconds, save, most
            )
            kills, unfinished = kills + count, unfinished + in_saves
            clock.count(count)
            runs += 1
            label = f"run {runs - 1}, killed {count} times"
            defects += [f"{label}: {failure}"] if failure else []
            if not failure:
                defects += _compare(root / name, expected, label)
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
    root: Path, name: str, log: Path, random, seconds: float, save: float, most: float
) -> tuple[int, int, str]:
    """Trains a run that is killed at most `most` times.

    Args:
      seconds: how long an undisturbed run takes.
      save: how long a save of an undisturbed run takes.

    Returns:
      The kills; how many of them left a new checkpoint without a commit; what went wrong.
    """
    kills = in_saves = 0
    while kills < most:
        began = time.time()
        process = start(root, name, log, **CHANGES)
        _wait_for_a_moment(process, root / name, random, seconds, save)
        if process.poll() is None:
            process.kill()
            process.wait()
            kills += 1
            in_saves += bool(_unfinished(root / name / "checkpoints", began))
            continue
        if process.returncode:
            return kills, in_saves, f"exit code {process.returncode}\n{last_lines(log.read_text())}"
        return kills, in_saves, ""
    return kills, in_saves, _to_the_end(root, name, log)[1]


def _wait_for_a_moment(
    process: subprocess.Popen, workdir: Path, random, seconds: float, save: float
) -> None:
    """Returns at a random moment of a process's life, or when it has ended."""
    checkpoints = workdir / "checkpoints"
    # A little more than the whole life, so that some processes end by themselves.
    longest = 1.1 * seconds
    place = random.choice(["anywhere", "save", "commit", "folder"])
    if place == "anywhere":
        _sleep(process, random.uniform(0, longest))
        return
    number = random.randint(1, 4)  # of the saves or commits that are waited for
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
    _sleep(process, random.uniform(0, save if place == "save" else 0.05))
    # If that was too long, the start of the next save will do.
    while place == "save" and not look() and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.001)


def _sleep(process: subprocess.Popen, seconds: float) -> None:
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
    """Returns the names of the checkpoints that are committed."""
    return {name for name in _entries(checkpoints) if (checkpoints / name / COMMIT_FILE).exists()}


def _entries(folder: Path) -> set[str]:
    """Returns the names in a folder; none if it is not there."""
    return set(os.listdir(folder)) if folder.is_dir() else set()


def _to_the_end(
    root: Path, name: str, log: Path, saves: list[float] | None = None
) -> tuple[float, str]:
    """Trains a run to its end; returns the seconds, and what went wrong.

    If there is a list `saves`, the seconds of each save are added to it.
    """
    began = time.monotonic()
    process = start(root, name, log, **CHANGES)
    if saves is not None:
        saves += _save_seconds(process, root / name / "checkpoints")
    try:
        process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        abort(process)
    seconds = time.monotonic() - began
    if process.returncode:
        return seconds, f"exit code {process.returncode}\n{last_lines(log.read_text())}"
    return seconds, ""


def _save_seconds(process: subprocess.Popen, checkpoints: Path) -> list[float]:
    """Watches a process until it ends; returns how long each of its saves took until the commit."""
    since = time.time()
    begun: dict[str, float] = {}
    seconds: list[float] = []
    ends = time.monotonic() + TIMEOUT
    while process.poll() is None and time.monotonic() < ends:
        unfinished = _unfinished(checkpoints, since)
        seconds += [time.monotonic() - begun.pop(name) for name in set(begun) - unfinished]
        begun |= {name: time.monotonic() for name in unfinished - set(begun)}
        time.sleep(0.001)
    return seconds


def _compare(workdir: Path, expected: FinalState, label: str) -> list[str]:
    """Returns a defect if the final state of a run is not the expected one."""
    different = FinalState.read(workdir).differences(expected)
    if not different:
        return []
    return [f"{label}: {len(different)} of {len(expected.arrays)} differ, first {different[0]}"]
