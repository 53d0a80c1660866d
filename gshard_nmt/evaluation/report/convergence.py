"""How many tokens a run needs to reach a cross-entropy, as GShard Table 2, from its metrics.jsonl."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.comparison import other_vocabularies
from gshard_nmt.evaluation.report.report import Evaluation, Section
from gshard_nmt.evaluation.report.tables import count_text, digits_text
from gshard_nmt.run.folder import RunFolder

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


def convergence_section(evaluation: Evaluation) -> Section | None:
    """Returns the tokens that each run needed to reach some cross-entropies, as GShard Table 2."""
    runs = {s.name: s.run for s in evaluation.systems.compared if s.run}
    measure, curves = curves_of(list(runs.values()))
    if not any(curves):
        return None
    values = evaluation.request.others.cross_entropies or chosen_values(curves)
    reached = {
        name: [curve.tokens_to_reach(value) if curve else None for value in values]
        for name, curve in zip(runs, curves, strict=True)
    }
    main = next(iter(runs.values()))
    incomparable = [name for name, run in runs.items() if other_vocabularies(main, run)]
    rows = []
    for (name, tokens), curve in zip(reached.items(), curves, strict=True):
        missing = "not reached" if curve else "not logged"
        cells = [missing if count is None else count_text(count) for count in tokens]
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
        note += "\n<p>* This run has other vocabularies, so its numbers cannot be compared.</p>"
    heads = ["system", *(f"{value:g}" for value in values), "lowest"]
    data = {
        "measure": measure,
        "cross_entropies": list(values),
        "tokens": reached,
        "other_vocabularies": incomparable,
    }
    title = "Tokens to reach a cross-entropy"
    return Section("tokens_to_cross_entropy", title, f"{web_page.table(heads, rows)}\n{note}", data)


def curves_of(runs: Sequence[RunFolder]) -> tuple[str, list[Curve | None]]:
    """Reads the curves of runs, all of the same cross-entropy.

    It is the cross-entropy on dev text if every run has logged it five times, because text that a model
    has seen often flatters it. Otherwise it is that of the training batches, as in the paper, averaged
    over the last 10 logged values.

    Returns:
      "dev_nll" or "nll", and the curve of each run; None if a run has logged nothing.
    """
    logs = [read_log(run) for run in runs]
    of_dev = [_curve(log, DEV) for log in logs]
    if all(curve is not None and len(curve.values) >= _FEWEST_POINTS for curve in of_dev):
        return DEV, of_dev
    return TRAINING, [_curve(log, TRAINING) for log in logs]


def chosen_values(curves: Sequence[Curve | None]) -> list[float]:
    """Returns three cross-entropies that tell runs apart, highest first.

    All runs have reached the first, only the best run the last; the second is between them. If the runs
    end alike, the values are taken from the way of the best run.
    """
    known = [curve.values for curve in curves if curve is not None]
    if not known:
        return []
    lowest, highest = (float(end(values.min() for values in known)) for end in (min, max))
    if highest - lowest < 0.03:
        highest = lowest + (max(float(values[0]) for values in known) - lowest) / 2
    values = (math.ceil(100 * value - 1e-9) / 100 for value in np.linspace(highest, lowest, 3))
    return sorted(set(values), reverse=True)


def _curve(log: Sequence[dict[str, float]], name: str) -> Curve | None:
    log = [entry for entry in log if "step" in entry]
    steps = [entry["step"] for entry in log if name in entry]
    counted = {entry["step"]: entry["tokens"] for entry in log if "tokens" in entry}
    if not steps or not counted:
        return None
    values = np.array([entry[name] for entry in log if name in entry], np.float64)
    if name == TRAINING:
        values = np.array(
            [values[max(0, end - _NEIGHBORS) : end].mean() for end in range(1, len(values) + 1)]
        )
    # Tokens are logged with the training metrics, and their number grows evenly between two logged steps.
    known_steps = sorted(counted)
    tokens = np.interp(steps, [0.0, *known_steps], [0.0, *(counted[step] for step in known_steps)])
    return Curve(tokens, values)


def read_log(run: RunFolder) -> list[dict[str, Any]]:
    """Returns the finite numbers of each line of metrics.jsonl; lines that are damaged are left out."""
    try:
        lines = run.metrics.read_bytes().decode(errors="replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            is_number = {k: type(v) in (int, float) and math.isfinite(v) for k, v in row.items()}
            rows.append({name: value for name, value in row.items() if is_number[name]})
    return rows
