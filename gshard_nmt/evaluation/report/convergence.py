"""How many tokens a run needs to reach a cross-entropy, as GShard Table 2, from its metrics.jsonl."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt import json_shape
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.report.tables import count_text, digits_text
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.log import LINE

DEV, TRAINING = "dev_nll", "nll"
"""The cross-entropies that a run logs, in nats for each target token, without auxiliary losses."""

_FEWEST_POINTS = 5
"""Values on dev text that a run must have logged. Fewer would count the tokens too coarsely."""
_NEIGHBORS = 10
"""Logged values of one training batch each that are averaged, because batches differ."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """float64[points] each: the tokens that a run had seen, and its cross-entropy."""

    tokens: np.ndarray
    values: np.ndarray

    def tokens_to_reach(self, value: float) -> float | None:
        """Returns the tokens at the first point that is as low as `value`; None if there is none."""
        reached = np.flatnonzero(self.values <= value)
        return float(self.tokens[reached[0]]) if len(reached) else None


def convergence_section(runs: Mapping[str, RunFolder]) -> Section | None:
    """Returns the tokens that each run needed to reach three cross-entropies that tell runs apart."""
    measure, curves = curves_of(list(runs.values()))
    if not any(curves):
        return None
    values = chosen_values([curve for curve in curves if curve])
    texts = {
        name: [sorted(run.directions), *(run.identity()[v] for v in VOCABULARIES)]
        for name, run in runs.items()
    }
    main = next(iter(texts.values()))
    incomparable = [name for name, own in texts.items() if own != main]
    rows, reached = [], {}
    for name, curve in zip(runs, curves, strict=True):
        reached[name] = [curve.tokens_to_reach(value) if curve else None for value in values]
        missing = "not reached" if curve else "not logged"
        cells = [missing if count is None else count_text(count) for count in reached[name]]
        lowest = float(curve.values.min()) if curve else None
        rows.append([f"{name} *" if name in incomparable else name, *cells, digits_text(lowest)])
    which = (
        "on dev text"
        if measure == DEV
        else "of the training batches, a mean of the last 10 logged values, because not every run has "
        "logged it on dev text"
    )
    note = (
        f"<p>Cross-entropy {which}, in nats for each target token, without auxiliary losses "
        f"(<code>{measure}</code> of metrics.jsonl). A number is the source and target tokens that the "
        "run had seen when it was first as low.</p>"
    )
    if incomparable:
        note += (
            "\n<p>* It has other vocabularies or directions, so its numbers cannot be compared.</p>"
        )
    heads = ["system", *(f"{value:g}" for value in values), "lowest"]
    data = {
        "measure": measure,
        "cross_entropies": values,
        "tokens": reached,
        "not_comparable": incomparable,
    }
    title = "Tokens to reach a cross-entropy"
    return Section("tokens_to_cross_entropy", title, f"{web_page.table(heads, rows)}\n{note}", data)


def curves_of(runs: Sequence[RunFolder]) -> tuple[str, list[Curve | None]]:
    """Reads the curves of runs, all of the same cross-entropy.

    It is the cross-entropy on dev text if every run has logged it five times, because text that a model
    has seen often flatters it. Otherwise it is that of the training batches, as in the paper, averaged
    over the last 10 logged values. Returns its name too; the curve is None if a run has logged nothing.
    """
    logs = [_read_log(run) for run in runs]
    of_dev = [_curve(log, DEV) for log in logs]
    if all(curve is not None and len(curve.values) >= _FEWEST_POINTS for curve in of_dev):
        return DEV, of_dev
    return TRAINING, [_curve(log, TRAINING) for log in logs]


def chosen_values(curves: Sequence[Curve]) -> list[float]:
    """Returns three cross-entropies that tell runs apart, highest first.

    All runs have reached the first, only the best run the last; the second is between them. If the runs
    end alike, the values are taken from the way of the best run.
    """
    ends = [float(curve.values.min()) for curve in curves]
    lowest, highest = min(ends), max(ends)
    if highest - lowest < 0.03:
        highest = lowest + (max(float(curve.values[0]) for curve in curves) - lowest) / 2
    values = (math.ceil(100 * value - 1e-9) / 100 for value in np.linspace(highest, lowest, 3))
    return sorted(set(values), reverse=True)


def _curve(log: Sequence[Mapping[str, Any]], name: str) -> Curve | None:
    pairs = [(entry["step"], entry.get(name)) for entry in log]
    points = [(step, y) for step, y in pairs if isinstance(y, int | float) and math.isfinite(y)]
    counted = {0: 0} | {entry["step"]: entry["tokens"] for entry in log if "tokens" in entry}
    if not points or len(counted) == 1:
        return None
    steps, values = np.array(points, np.float64).T
    if name == TRAINING:
        ends = range(1, len(values) + 1)
        values = np.array([values[max(0, end - _NEIGHBORS) : end].mean() for end in ends])
    # Tokens are logged with the training metrics, and their number grows evenly between two logged steps.
    known = sorted(counted)
    return Curve(np.interp(steps, known, [counted[step] for step in known]), values)


def _read_log(run: RunFolder) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl that have a step; events and damaged lines are left out."""
    rows = []
    lines = run.metrics.read_bytes().splitlines() if run.metrics.exists() else []
    for line in lines:
        with contextlib.suppress(ValueError):
            row = json_shape.parse(line, LINE)
            if "event" not in row:  # its `tokens` may be those of one step
                rows.append(row)
    return rows
