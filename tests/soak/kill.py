"""SIGKILL at random moments: a run that was killed ends in the state of one that was not.

A third of the moments are spread over the whole life of a process: while it imports, restores, trains and
saves. A third follow the start of a save, and a third the making of the run folder. Parameters, optimizer
state, the place in the data and the token counts must be equal to the bit.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

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
    runs = kills = 0
    defects: list[str] = []
    try:
        seconds, failure = _to_the_end(root, "first", log)
        if not failure:
            # A second run starts from the compiled programs of the first, as killed runs do.
            seconds, failure = _to_the_end(root, "undisturbed", log)
        if failure:
            return Report("the undisturbed run failed", [failure])
        expected = FinalState.read(root / "undisturbed")
        defects += _compare(root / "first", expected, "a second undisturbed run")
        say(f"kill: an undisturbed run takes {seconds:.1f} s, {len(expected.arrays)} arrays")
        while runs == 0 or not clock.is_over():  # at least one comparison, however slow the machine
            name = f"killed_{runs}"
            log.write_text("")
            most = min(MOST_KILLS, clock.cases_left)
            count, failure = _killed(root, name, log, generator(seed, runs), seconds, most)
            kills += count
            clock.count(count)
            runs += 1
            label = f"run {runs - 1}, killed {count} times"
            defects += [f"{label}: {failure}"] if failure else []
            if not failure:
                defects += _compare(root / name, expected, label)
            say(
                f"kill: {runs} runs, {kills} kills, {len(defects)} defects; {clock.left:.0f} s left"
            )
            remove(root / name)
    finally:
        remove(root)
    tried = f"{runs} runs were killed {kills} times and compared with an undisturbed one to the bit"
    return Report(tried, defects)


def _killed(
    root: Path, name: str, log: Path, random, seconds: float, most: float
) -> tuple[int, str]:
    """Trains a run that is killed at most `most` times; returns the kills, and what went wrong."""
    kills = 0
    while kills < most:
        process = start(root, name, log, **CHANGES)
        _wait_for_a_moment(process, root / name, random, seconds)
        if process.poll() is None:
            process.kill()
            process.wait()
            kills += 1
            continue
        if process.returncode:
            return kills, f"exit code {process.returncode}\n{last_lines(log.read_text())}"
        return kills, ""
    return kills, _to_the_end(root, name, log)[1]


def _wait_for_a_moment(process: subprocess.Popen, workdir: Path, random, seconds: float) -> None:
    """Returns at a random moment of a process's life, or when it has ended."""
    # A little more than the whole life, so that some processes end by themselves.
    longest = 1.1 * seconds
    watched, after = random.choice(
        [(None, longest), (workdir / "checkpoints", 0.5), (workdir, 0.05)]
    )
    before = _entries(watched)
    ends = time.monotonic() + longest
    while watched and _entries(watched) == before:
        if process.poll() is not None or time.monotonic() > ends:
            return
        time.sleep(0.001)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(random.uniform(0, after))


def _entries(folder: Path | None) -> list[str]:
    """Returns the names in a folder; none if it is not there."""
    return sorted(os.listdir(folder)) if folder and folder.is_dir() else []


def _to_the_end(root: Path, name: str, log: Path) -> tuple[float, str]:
    """Trains a run to its end; returns the seconds, and what went wrong."""
    began = time.monotonic()
    process = start(root, name, log, **CHANGES)
    try:
        process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        abort(process)
    seconds = time.monotonic() - began
    if process.returncode:
        return seconds, f"exit code {process.returncode}\n{last_lines(log.read_text())}"
    return seconds, ""


def _compare(workdir: Path, expected: FinalState, label: str) -> list[str]:
    """Returns a defect if the final state of a run is not the expected one."""
    different = FinalState.read(workdir).differences(expected)
    if not different:
        return []
    return [f"{label}: {len(different)} of {len(expected.arrays)} differ, first {different[0]}"]
