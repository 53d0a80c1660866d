"""benchmarks/results.json: one record for each figure that a benchmark has measured.

A record has the keys of `Figure`, and `part`, `command`, `versions`, `machine`, `date`, `commit` and
`busy`, which is "" if the machine was quiet.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results.json"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A measured quantity, and how it compares with another one of the same run.

    Attributes:
      name: what was measured.
      unit: the unit of `median`.
      median: the median of all rounds.
      interval: the smallest and the largest value.
      base: the name of the figure that `ratio` compares with; "" if there is none.
      ratio: the median of the ratios of all rounds: the value of this figure over that of `base`.
      ratio_interval: the smallest and the largest ratio.
    """

    name: str
    unit: str
    median: float
    interval: tuple[float, float]
    base: str = ""
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        unit: str,
        values: Sequence[float],
        base: str = "",
        ratios: Sequence[float] = (),
    ) -> "Figure":
        ratio = statistics.median(ratios) if ratios else None
        ratio_interval = (min(ratios), max(ratios)) if ratios else None
        interval = min(values), max(values)
        return cls(name, unit, statistics.median(values), interval, base, ratio, ratio_interval)


@dataclasses.dataclass(frozen=True)
class Circumstances:
    """How and when figures were measured, with the versions of the libraries."""

    command: str
    machine: str
    busy: str
    versions: Mapping[str, str]
    date: str
    commit: str


def circumstances(
    command: str, machine: str, busy: str, versions: Mapping[str, str]
) -> Circumstances:
    own = {name: importlib.metadata.version(name) for name in ("jaxlib", "tensorflow")}
    versions = dict(sorted((own | {"python": platform.python_version()} | dict(versions)).items()))
    today = f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d}"
    return Circumstances(command, machine, busy, versions, today, commit())


def commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(RESULTS.parent), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.strip()

    # The files that benchmarks write are no change of the code.
    written = [":(top,exclude)benchmarks/results.json", ":(top,exclude)docs"]
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", *written)
    return git("rev-parse", "--short=12", "HEAD") + "+" * bool(changed)


def replace(
    records: Sequence[Mapping[str, Any]], part: str, figures: Sequence[Figure], how: Circumstances
) -> list[dict[str, Any]]:
    others = [dict(record) for record in records if record["part"] != part]
    circumstances = dataclasses.asdict(how)
    own = [{"part": part} | dataclasses.asdict(figure) | circumstances for figure in figures]
    return sorted(others + own, key=lambda record: record["part"])


def write(part: str, figures: Sequence[Figure], how: Circumstances) -> None:
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    text = json.dumps(replace(old, part, figures, how), indent=1)
    RESULTS.write_text(text + "\n", encoding="utf-8")
