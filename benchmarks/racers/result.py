"""The results of a race: a file for each run, and a table."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import page

from gshard_nmt import files
from gshard_nmt.evaluation.significance import interval_of_mean

FILE = "result.json"


@dataclasses.dataclass(frozen=True)
class Result:
    """What one run reached.

    Attributes:
      conditions: what must be equal if the run is used again, as values for JSON.
      updates: those of the last checkpoint, which translates.
      minutes: those of the run, without the racer's own validations.
      dev, test: BLEU; test text is translated by the best trial of a racer only.
      signature: sacreBLEU's.
    """

    conditions: Mapping[str, Any]
    updates: int
    minutes: float
    dev: float
    signature: str
    test: float | None = None


def write(result: Result, folder: Path) -> None:
    files.write(folder / FILE, json.dumps(dataclasses.asdict(result), indent=1) + "\n")


def read(folder: Path, conditions: Mapping[str, Any]) -> Result | None:
    path = folder / FILE
    values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Result(**values) if values.get("conditions") == conditions else None


def table(trials: Mapping[str, Sequence[Result]], finals: Mapping[str, Sequence[Result]]) -> str:
    """Returns a row for each racer. The test BLEU is that of all seeds of its best trial."""
    rows = [("", "dev BLEU of the trials", "best trial", "its updates", "minutes", "test BLEU")]
    for name, results in trials.items():
        best = finals[name][0]
        rows.append(
            (
                name,
                ", ".join(f"{own.dev:.1f}" for own in results),
                f"`{json.dumps(best.conditions['changes'])}`",
                f"{best.updates:,}",
                f"{best.minutes:.1f}",
                scores(finals[name]),
            )
        )
    return page.table(rows)


def scores(finals: Sequence[Result]) -> str:
    values = [own.test for own in finals if own.test is not None]
    interval = interval_of_mean(values)
    mean = f"**{sum(values) / len(values):.1f}**"
    return f"{mean} ({max(interval[0], 0):.1f} to {interval[1]:.1f})" if interval else mean
