"""The schedule of a mixture: how often each corpus is drawn, phase by phase.

A schedule is a list of phases. A phase holds from its step until the next phase begins:

    Data.schedule = [
        {"from_step": 0, "temperature": 1.0},
        {"from_step": 10000, "temperature": 5.0, "weights": {"back": 0, "fr": 2}},
    ]

A direction of translation d has one or more corpora (subsets) s with n examples each. Their rates are

    rate(d, s) ~ W_d * N_d ** (1 / temperature) * (w_s * n / N_d),   N_d = sum over s of w_s * n

W_d is the weight of the language or the folder of d, and w_s is the weight of the subset. So the weight
of a subset changes its part of a direction, and the weight of a language changes its part of the whole.
A weight that is not named is 1.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.ranges import MOST

Entry = Mapping[str, Any]
"""A phase as the config writes it."""

_KEYS = ("from_step", "temperature", "weights")


@dataclasses.dataclass(frozen=True)
class Component:
    """One corpus of one direction, with n examples: the unit that a mixture draws from."""

    source: str
    target: str
    language: str
    subset: str
    examples: int

    @property
    def direction(self) -> str:
        return f"{self.source}-{self.target}"


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run with constant rates, after `from_step` steps (see `in_run` if it is below 1)."""

    from_step: float
    temperature: float
    weights: Mapping[str, float]

    def rates(self, components: Sequence[Component]) -> np.ndarray:
        """Returns float64[components], whose sum is 1. Raises UserError if all weights are 0."""
        weights = [self.weights.get(c.subset, 1.0) if c.subset else 1.0 for c in components]
        sizes = np.array([c.examples for c in components], np.float64) * weights
        names, of = np.unique([c.direction for c in components], return_inverse=True)
        totals = np.bincount(of, sizes, len(names))
        with np.errstate(divide="ignore"):
            logs = np.log(totals) / self.temperature
        factors = [
            math.prod(self.weights.get(name, 1.0) for name in {c.language, c.direction})
            for c in components
        ]
        rates = np.zeros(len(sizes))
        if np.isfinite(logs).any():
            directions = np.exp(logs - logs.max())[of]
            rates = factors * directions * sizes / np.where(totals > 0, totals, 1)[of]
        if not rates.sum() > 0:
            raise UserError(
                f"Data.schedule leaves nothing to train on from step {self.from_step}: every weight is "
                "0, or the corpora are empty. Give a corpus that has training pairs a weight above 0.",
                ["Data.schedule"],
            )
        return rates / rates.sum()


def phases_of(schedule: Sequence[Entry], temperature: float) -> tuple[Phase, ...]:
    """Returns the phases of a schedule; the first begins at step 0, with every weight 1.

    `temperature` holds before the first entry, and in each entry that gives none.
    """
    phases = [Phase(0, temperature, {})]
    for number, entry in enumerate(schedule, 1):
        _check(entry, f"entry {number}")
        begin = entry["from_step"]
        if number > 1 and begin <= phases[-1].from_step and not 0 < begin < 1:  # shares: see in_run
            raise _error(
                f"entry {number} begins at step {begin}, and the entry before it at step "
                f"{phases[-1].from_step}; put the entries in the order of their steps"
            )
        if begin == 0:
            phases.clear()
        own = float(entry.get("temperature", temperature))
        phases.append(Phase(begin, own, entry.get("weights", {})))
    return tuple(phases)


def _check(entry: Any, place: str) -> None:
    """Raises UserError if an entry of a schedule is wrong."""
    for key in entry:
        if key not in _KEYS:
            raise _error(
                f"{place} has the key {key!r}{did_you_mean(key, _KEYS)} The keys are {', '.join(_KEYS)}"
            )
    value = entry.get("from_step")
    is_number = isinstance(value, int | float) and 0 <= value <= MOST
    if not is_number or (value != int(value) and value > 1):
        steps = f"a whole number of steps from 0 to {MOST}, or below 1 a share of the run"
        raise _error(f"in {place}, from_step is {value!r}; it must be {steps}")
    place += f" (from_step {entry['from_step']})"
    value = entry.get("temperature", 1.0)
    if not isinstance(value, int | float) or not 0 < value <= MOST:
        raise _error(
            f"in {place}, temperature is {value!r}; it must be a number above 0, such as 5.0"
        )
    weights = entry.get("weights", {})
    if not isinstance(weights, Mapping):
        raise _error(f"in {place}, weights is {weights!r}; it must be a dict from names to numbers")
    for name, weight in weights.items():
        if not 0 <= weight <= MOST:
            raise _error(
                f"in {place}, the weight of {name!r} is {weight}; it must be from 0 to {MOST}"
            )


def in_run(schedule: Sequence[Entry], steps: int) -> tuple[Entry, ...]:
    """Returns the schedule of a run of `steps` steps: its shares are numbers of steps, from 1."""
    return tuple(
        {**entry, "from_step": max(1, round(begin * steps)) if 0 < begin < 1 else int(begin)}
        for entry in schedule
        for begin in [entry["from_step"]]
    )


def of_part(schedule: Sequence[Entry], components: Sequence[Component]) -> tuple[Entry, ...]:
    """Returns the schedule for a run that draws from a part of the data, such as a bilingual baseline.

    A weight is left out if its name is that of no component or of all: then it changes no rate. If
    nothing is left to draw from all the same, the phase gets no weights.
    """
    names = [{c.language, c.direction, c.subset} for c in components]
    entries: list[Entry] = []
    for entry in schedule:
        old = entry.get("weights", {})
        weights = {n: old[n] for n in old if 0 < sum(n in own for own in names) < len(names)}
        if not any(all(weights.get(name, 1) > 0 for name in own) for own in names):
            weights = {}
        entries.append({**entry, "weights": weights} if "weights" in entry else entry)
    return tuple(entries)


def phase_at(phases: Sequence[Phase], step: int) -> int:
    return max(number for number, phase in enumerate(phases) if phase.from_step <= step)


def wrong_names(phases: Sequence[Phase], components: Sequence[Component]) -> Iterator[UserError]:
    """Yields an error for each weight whose name is not that of one language, direction or subset."""
    subsets = {c.subset for c in components if c.subset}
    others = {name for c in components for name in (c.language, c.direction)}
    known = sorted(subsets | others)
    for name in dict.fromkeys(name for phase in phases for name in phase.weights):
        if name in subsets & others:
            yield _error(f"a weight names {name!r}, a language and a corpus; rename the corpus")
        if name not in known:
            yield _error(
                f"a weight names {name!r}, which the data does not have{did_you_mean(name, known)} "
                f"It has {', '.join(known)}"
            )


def _error(what: str) -> UserError:
    return UserError(f"Data.schedule is wrong: {what}.", ["Data.schedule"])
