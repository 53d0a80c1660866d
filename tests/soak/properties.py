"""Property tests with many more examples than in `make test`, again and again with another seed."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import PROPERTY_TIMES
from tests.soak.campaign import Clock, Report, last_lines, say

TESTS = Path(__file__).parents[1]


def campaign(clock: Clock, seed: int) -> Report:
    """Runs the files that use hypothesis until the time is over."""
    passed = ended = 0
    unfinished: list[str] = []
    defects: list[str] = []
    files = [
        file
        for file in sorted(TESTS.rglob("test_*.py"))
        if re.search(r"@(hypothesis\.)?given", file.read_text())
    ]
    for turn, file in itertools.product(itertools.count(), files):
        # Every file has its turn in the first round, however long the others take.
        rest = len(files) - ended
        seconds = max(20, clock.left / rest) if rest > 0 else clock.left
        if clock.is_over() and rest <= 0:
            break
        command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += ["--hypothesis-profile=soak", f"--hypothesis-seed={seed + turn}", str(file)]
        name, ended = str(file.relative_to(TESTS)), ended + 1
        try:
            done = subprocess.run(
                command,
                cwd=TESTS.parent,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            unfinished.append(name)
            continue
        counts = re.search(r"(\d+) passed", done.stdout)
        passed += int(counts[1]) if counts else 0
        if done.returncode:
            defects.append(f"{name}, seed {seed + turn}:\n{last_lines(done.stdout, 60)}")
        say(f"properties: {name}, {passed} passed, {len(defects)} defects; {clock.left:.0f} s left")
    late = f"; out of time in {', '.join(sorted({*unfinished}))}" if unfinished else ""
    tried = f"{passed} times a test passed with {PROPERTY_TIMES} times its usual examples{late}"
    return Report(tried, defects)
