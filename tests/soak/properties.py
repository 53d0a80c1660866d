"""Property tests with many more examples than in `make test`.

Each round runs every file of property tests once, with a seed of its own. The profile `soak`
(tests/conftest.py) multiplies the number of examples of each test.
"""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROPERTY_TIMES
from tests.soak.campaign import Clock, Report, last_lines, say

TESTS = Path(__file__).parents[1]


def files() -> list[Path]:
    """Returns the files that use hypothesis; no list of names grows old."""
    words = ("@given", "@hypothesis.given")
    tests = sorted(TESTS.rglob("test_*.py"))
    return [file for file in tests if any(word in file.read_text() for word in words)]


def campaign(clock: Clock, seed: int) -> Report:
    """Runs the files again and again until the time is over."""
    rounds = passed = 0
    cut_short: set[str] = set()
    defects: list[str] = []
    listed = files()
    while not clock.is_over():
        for number, file in enumerate(listed):
            if clock.is_over():
                break
            name = str(file.relative_to(TESTS))
            # Every file has its turn in the first round, however long the others take.
            seconds = max(20, clock.left / (len(listed) - number) if rounds == 0 else clock.left)
            code, said = _run(file, seed + rounds, seconds)
            counts = re.search(r"(\d+) passed", said)
            passed += int(counts[1]) if counts else 0
            if code == pytest.ExitCode.INTERRUPTED:
                cut_short.add(name)
            if code not in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED) or " failed" in said:
                defects.append(f"{name}, seed {seed + rounds}:\n{last_lines(said, 60)}")
            say(
                f"properties: round {rounds}, {name}: {counts[0] if counts else 'no test ended'}, "
                f"{len(defects)} defects; {clock.left:.0f} s left"
            )
        rounds += 1
    tried = (
        f"{passed} times a property test passed with {PROPERTY_TIMES} times its usual examples, in "
        f"{rounds} rounds of {len(listed)} files"
    )
    if cut_short:
        tried += f"; out of time in {', '.join(sorted(cut_short))}"
    return Report(tried, defects)


def _run(file: Path, seed: int, seconds: float) -> tuple[int, str]:
    """Runs the property tests of a file, for some time; returns the exit code and the output."""
    options = ["-q", "-n", "0", "-p", "no:cacheprovider"]
    options += ["--hypothesis-profile=soak", f"--hypothesis-seed={seed}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, str(file)],
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        # pytest then reports what has passed and failed so far.
        process.send_signal(signal.SIGINT)
        try:
            said, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            return pytest.ExitCode.INTERRUPTED, said
    return process.returncode, said
