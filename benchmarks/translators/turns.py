"""The conversation of the benchmark with a translator, which is a process of its own.

The process writes a line of facts when it is ready. Then each line on its stdin asks for one translation
of the batch, and each line on its stdout has the seconds that it took and the CPU seconds.
"""

import contextlib
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

WARM_UPS = 2


def take_turns(
    translate: Callable[[], Sequence[int]], tokens: int, facts: Mapping[str, str]
) -> None:
    """Warms up, then translates once for each line of stdin, until stdin ends.

    Args:
      translate: translates the batch; returns the number of decoder steps of each translation.
      tokens: the number of decoder steps that every translation must have.
      facts: the versions of the libraries.

    Raises:
      RuntimeError: a translation has another length, so that its speed could not be compared.
    """
    answers = sys.stdout
    # What a library prints is not an answer.
    with contextlib.redirect_stdout(sys.stderr):
        for _ in range(WARM_UPS):
            steps = set(translate())
            if steps != {tokens}:
                raise RuntimeError(f"translations have {sorted(steps)} tokens, expected {tokens}")
        print(json.dumps(dict(facts)), file=answers, flush=True)
        for _ in sys.stdin:
            began, cpu_began = time.perf_counter(), time.process_time()
            translate()
            took = time.perf_counter() - began, time.process_time() - cpu_began
            print(json.dumps(took), file=answers, flush=True)


@dataclasses.dataclass(frozen=True)
class Turn:
    """What a translation of the batch took: seconds, and CPU seconds of all threads."""

    seconds: float
    cpu_seconds: float


class Translating:
    """A translator in a process of its own, ready for its turns."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Starts the process and waits until it is warm.

        Raises:
          RuntimeError: the process failed; the message has the end of its log.
        """
        self._log = log
        with log.open("w", encoding="utf-8") as stderr:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        try:
            self.facts: dict[str, str] = json.loads(self._answer())
        except BaseException:
            self.__exit__()
            raise

    def ask(self) -> None:
        """Asks for one translation; `turn` waits for it."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def turn(self) -> Turn:
        """Waits for the translation that was asked for; returns what it took."""
        return Turn(*json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            end = self._log.read_text(encoding="utf-8").splitlines()[-5:]
            raise RuntimeError("\n".join([f"The process ended; its log is {self._log}:", *end]))
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
