"""Runs the benchmarks one after another, as `make bench` does, and writes their tables and records.

    make bench
    make bench PART=training
    .venv/bin/python benchmarks/bench.py --part training --page never

Each part has a time limit; all take about 25 minutes together. A part makes fewer rounds if they would
take longer, and is stopped if it takes twice its limit. The figures go to docs/performance.md and to
benchmarks/results.json. `--page always` writes them also if the machine is busy.
"""

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import page, start

FOLDER = Path(__file__).parent
GRACE = 2.0
"""A part is stopped after this number of times its limit."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A benchmark.

    Attributes:
      minutes: its limit on two quiet cores.
      arguments: its program and flags.
      has_limit: whether the program has the flag `--minutes`. If not, its flags set its length.
    """

    minutes: float
    arguments: tuple[str, ...]
    has_limit: bool = True

    def command(self, when: str) -> list[str]:
        program, *flags = self.arguments
        limit = ["--minutes", f"{self.minutes:g}"] if self.has_limit else []
        return [sys.executable, str(FOLDER / program), *flags, *limit, "--page", when]


PARTS = {
    "training": Part(9, ("training.py",)),
    "step": Part(1, ("step.py",), has_limit=False),
    "decoding": Part(6, ("decoding.py",)),
    "first-line": Part(0.5, ("decoding.py", "--first")),
    "start": Part(2, ("start.py",)),
}
"""The parts in the order in which they run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--part", choices=PARTS, help="run this part only")
    page.add_page_flag(parser)
    arguments = parser.parse_args()
    # The time limits do not cover the downloads.
    start.has_peers()
    names = [arguments.part] if arguments.part else list(PARTS)
    endings = {name: run(name, PARTS[name], arguments.page) for name in names}
    print("\n".join(f"{name:20} {ending}" for name, ending in endings.items()))
    return int(any("failed" in ending for ending in endings.values()))


def run(name: str, part: Part, when: str) -> str:
    print(f"{name}: about {part.minutes:g} minutes", file=sys.stderr, flush=True)
    began = time.monotonic()
    with subprocess.Popen(part.command(when), start_new_session=True) as process:
        try:
            code = process.wait(GRACE * part.minutes * 60)
            ending = f"failed with exit code {code}" if code else "done"
        except subprocess.TimeoutExpired:
            ending = f"failed: it took more than {GRACE:g} times its limit"
        finally:
            # A benchmark that fails may leave workers.
            _end(process)
    return f"{ending}, {(time.monotonic() - began) / 60:.1f} minutes"


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main())
