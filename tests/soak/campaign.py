"""What the campaigns share: a budget of time, a seed, and a report."""

import dataclasses
import math
import random
import time


class Clock:
    """The time that a campaign may take, and the number of cases that are enough."""

    def __init__(self, minutes: float, enough: int | None = None) -> None:
        self.began = time.monotonic()
        self.ends = self.began + 60 * minutes
        self.cases_left = math.inf if enough is None else enough

    def count(self, cases: int = 1) -> None:
        """Counts cases that have been tried."""
        self.cases_left -= cases

    @property
    def left(self) -> float:
        """Seconds until the campaign should end."""
        return max(0.0, self.ends - time.monotonic())

    def is_over(self) -> bool:
        return self.left == 0 or self.cases_left <= 0


@dataclasses.dataclass
class Report:
    """What a campaign has tried and found."""

    tried: str  # one line about everything that was tried
    defects: list[str]  # one text for each defect; none if the campaign has found nothing


def say(text: str) -> None:
    """Prints a line of progress at once, with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def generator(seed: int, *place: object) -> random.Random:
    """Returns random numbers that depend on the seed and on the place where they are used."""
    return random.Random(":".join(map(str, (seed, *place))))


def last_lines(text: str, count: int = 12) -> str:
    """Returns the end of a text, indented."""
    return "\n".join(f"    {line}" for line in text.splitlines()[-count:])
