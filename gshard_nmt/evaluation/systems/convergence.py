"""How many tokens a run needs to reach a cross-entropy, as GShard Table 2, from its metrics.jsonl."""

import dataclasses
import json
import math
from collections.abc import Sequence

import numpy as np

from gshard_nmt.run.folder import RunFolder

DEV, TRAINING = "dev_nll", "nll"
"""The cross-entropies that a run logs, in nats for each target token, without auxiliary losses."""

_FEWEST_POINTS = 5
"""Values on dev text that a run must have logged. Fewer would count the tokens too coarsely."""
_NEIGHBORS = 10
"""Logged values of one training batch each that are averaged, because batches differ."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """The cross-entropy of a run while it is trained.

    Attributes:
      tokens: float64[points], tokens that the run had seen, source and target without padding.
      values: float64[points], the cross-entropy.
    """

    tokens: np.ndarray
    values: np.ndarray

    @property
    def best(self) -> float:
        """The lowest value."""
        return float(self.values.min())

    def tokens_to_reach(self, value: float) -> float | None:
        """Returns the tokens at the first point that is as low as `value`; None if there is none."""
        reached = np.flatnonzero(self.values <= value)
        return float(self.tokens[reached[0]]) if len(reached) else None


def curves(runs: Sequence[RunFolder]) -> tuple[str, list[Curve | None]]:
    """Reads the curves of runs, all of the same cross-entropy.

    It is the cross-entropy on dev text if every run has logged it five times, because text that a model
    has seen often flatters it. Otherwise it is that of the training batches, as in the paper, averaged
    over the last 10 logged values.

    Returns:
      "dev_nll" or "nll", and the curve of each run; None if a run has logged nothing.
    """
    logs = [_read(run) for run in runs]
    of_dev = [_curve(log, DEV) for log in logs]
    if all(curve is not None and len(curve.values) >= _FEWEST_POINTS for curve in of_dev):
        return DEV, of_dev
    return TRAINING, [_curve(log, TRAINING) for log in logs]


def chosen_values(curves: Sequence[Curve | None]) -> list[float]:
    """Returns three cross-entropies that tell runs apart, highest first.

    All runs have reached the first, only the best run the last; the second is between them. If the runs
    end alike, the values are taken from the way of the best run.
    """
    known = [curve for curve in curves if curve is not None]
    if not known:
        return []
    lowest = min(curve.best for curve in known)
    highest = max(curve.best for curve in known)
    if highest - lowest < 0.03:
        start = max(float(curve.values[0]) for curve in known)
        highest = lowest + (start - lowest) / 2
    values = (math.ceil(100 * value - 1e-9) / 100 for value in np.linspace(highest, lowest, 3))
    return sorted(set(values), reverse=True)


def _curve(log: Sequence[dict[str, float]], name: str) -> Curve | None:
    """Returns the curve of a logged value; None if it was never logged."""
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
    seen = [counted[step] for step in known_steps]
    tokens = np.interp(steps, [0.0, *known_steps], [0.0, *seen])
    return Curve(tokens, values)


def _read(run: RunFolder) -> list[dict[str, float]]:
    """Returns the finite numbers of each line of metrics.jsonl; damaged lines are left out."""
    if not run.metrics.exists():
        return []
    entries: list[dict[str, float]] = []
    for line in run.metrics.read_bytes().decode(errors="replace").splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict) and type(content.get("step")) is int:
            entries.append(
                {
                    name: value
                    for name, value in content.items()
                    if type(value) in (int, float) and math.isfinite(value)
                }
            )
    return entries
