"""Writes the section of GSPMD table 4 in docs/paper_tables.md: narrow dense layers as pipelines."""

import dataclasses
from collections.abc import Mapping

import paper_notes as notes
from paper_page import Figures, recomputed_seconds, size_of, table, usable
from paper_rows import GSPMD_PIPELINES, Row

from gshard_nmt.settings.gin_reader import load_config


@dataclasses.dataclass(frozen=True)
class Printed:
    """A row of table 4.

    Attributes:
      gigabytes: the peak memory of a core.
      seconds: the time of a step.
      bubbles, recomputation: their shares of the step.
    """

    gigabytes: float
    seconds: float
    bubbles: float
    recomputation: float


TABLE4 = dict(
    zip(
        (row.name for row in GSPMD_PIPELINES),
        (
            Printed(14.9, 24.0, 0.056, 0.223),
            Printed(13.3, 22.3, 0.148, 0.213),
            Printed(13.1, 22.2, 0.080, 0.217),
            Printed(15.0, 23.4, 0.165, 0.222),
            Printed(11.5, 23.7, 0.161, 0.206),
        ),
        strict=True,
    )
)
"""Name of a row -> what the paper prints of it."""

COLUMNS = (
    *("mesh L, X, Y", "microbatches", "layers a stage", "GB, printed", "GiB, compiled"),
    *("step s, printed", "predicted", "bubbles, printed", "of the iterations"),
    *("recomputation, printed", "predicted"),
)


def section(figures: Mapping[str, Figures]) -> str:
    lines = [_line(row, figures.get(row.name)) for row in GSPMD_PIPELINES]
    title = "## GSPMD table 4: narrow dense layers as pipelines"
    return f"{title}\n\n{notes.PIPELINES}\n" + table(list(COLUMNS), lines)


def _line(row: Row, figures: Figures | None) -> list[str]:
    config, printed = load_config(row.config, row.settings), TABLE4[row.name]
    model, number = config.model, config.train.microbatches
    compiled = ["not compiled" if figures is None else "refused", "", ""]
    if figures is not None and usable(figures):
        step = figures["estimated_step_seconds"]
        compiled = [
            size_of(figures),
            f"{step:.1f}",
            f"{recomputed_seconds(figures) / step:.1%}",
        ]
    return [
        " x ".join(map(str, config.mesh.shape)),
        str(number),
        str(model.repeats("decoder") // model.stages),
        f"{printed.gigabytes:.1f}",
        compiled[0],
        f"{printed.seconds:.1f}",
        compiled[1],
        f"{printed.bubbles:.1%}",
        f"{model.pipeline_schedule('decoder', number).bubble_share:.1%}",
        f"{printed.recomputation:.1%}",
        compiled[2],
    ]
