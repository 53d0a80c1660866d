"""The results of a race: a file for each racer, a table and a figure."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import page

from gshard_nmt import files
from gshard_nmt.evaluation.report.figures import COLORS, image, new_figure, paint


@dataclasses.dataclass(frozen=True)
class Point:
    """A checkpoint: minutes of training, updates, and BLEU on dev text."""

    minutes: float
    updates: int
    bleu: float


@dataclasses.dataclass(frozen=True)
class Result:
    """What a racer reached.

    Attributes:
      name, label: those of the racer.
      conditions: what must be equal if two results are compared, as values for JSON.
      points: the checkpoints in their order.
      start_seconds: the time before the first update.
      validation_seconds: what the racer's own validations took. It is not in the minutes.
      busy_cores: CPU seconds for each second, start and validations included.
      signature: sacreBLEU's.
    """

    name: str
    label: str
    conditions: dict[str, Any]
    points: tuple[Point, ...]
    start_seconds: float
    validation_seconds: float
    busy_cores: float
    signature: str

    @property
    def best(self) -> Point:
        return max(self.points, key=lambda point: point.bleu)


def write(result: Result, path: Path) -> None:
    files.write(path, json.dumps(dataclasses.asdict(result), indent=1) + "\n")


def record(results: Sequence[Result], machine: str) -> str:
    values = [dataclasses.asdict(result) for result in results]
    return json.dumps({"machine": machine, "racers": values}, indent=1) + "\n"


def read(path: Path, conditions: dict[str, Any]) -> Result | None:
    if not path.exists():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    if values["conditions"] != conditions:
        return None
    points = tuple(Point(**point) for point in values.pop("points"))
    return Result(**values, points=points)


def table(results: Sequence[Result]) -> str:
    head = ("", "best dev BLEU", "after", "updates", "first update", "validation", "busy cores")
    rows: list[tuple[str, ...]] = [head]
    for result in results:
        best = result.best
        rows.append(
            (
                result.label,
                f"{best.bleu:.1f}",
                f"{best.minutes:.1f} min",
                f"{best.updates:,}",
                f"{result.start_seconds:.0f} s",
                f"{result.validation_seconds:.0f} s",
                f"{result.busy_cores:.1f}",
            )
        )
    return page.table(rows)


def figure(results: Sequence[Result], title: str) -> bytes:
    return image(lambda: draw(results, title), "svg")


def draw(results: Sequence[Result], title: str) -> Any:
    drawing = new_figure((7, 4))
    axes = drawing.subplots()
    for index, result in enumerate(results):
        minutes = [0.0, *(point.minutes for point in result.points)]
        scores = [0.0, *(point.bleu for point in result.points)]
        color = COLORS[index % len(COLORS)]
        axes.plot(minutes, scores, "o-", ms=3, color=color, label=result.label)
    axes.set_xlabel("minutes of training, start and compilation included")
    axes.set_ylabel("dev BLEU")
    axes.set_title(title)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    paint(drawing)
    return drawing
