"""What a report compares: systems, with their scores in each direction and the cost of their training."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from gshard_nmt.evaluation.metrics import significance
from gshard_nmt.evaluation.metrics.significance import Interval

Direction = tuple[str, str]
"""The source and the target language of a translation, as BCP 47 tags."""

RESOURCES = ("high", "middle", "low")
"""The three groups of languages, those with the most training pairs first."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """The size of a system and the cost of its training, as GShard Table 3 has them. None is unknown.

    Attributes:
      weights: number of trained parameters.
      experts: experts of each MoE layer; 0 for a dense model.
      layers: layers of the encoder and of the decoder together.
      steps: steps of training.
      tokens: tokens of the source and target text that the system has seen, without padding.
      devices: devices that trained it.
      steps_per_second: speed of training.
      batch_tokens: tokens of a step, counted as `tokens`.
      device_years: devices multiplied by years of training.
      days: days of training.
    """

    weights: int | None = None
    experts: int | None = None
    layers: int | None = None
    steps: int | None = None
    tokens: int | None = None
    devices: int | None = None
    steps_per_second: float | None = None
    batch_tokens: float | None = None
    device_years: float | None = None
    days: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
    """The statistics of each sentence of a direction, see `significance.statistics`.

    Attributes:
      groups: for each sentence, its English text; a text that several directions have is one sample.
      own: the statistics of the system.
      others: those of the main system as "difference", and of the bilingual baseline as "delta".
    """

    groups: Sequence[str]
    own: np.ndarray
    others: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def of_baseline(self) -> Self | None:
        """Returns the statistics of the baseline as a system; None if they are unknown."""
        return type(self)(self.groups, self.others["delta"]) if "delta" in self.others else None


@dataclasses.dataclass(frozen=True)
class DirectionResult:
    """The scores of a system in one direction.

    Attributes:
      language: the language of the pair that is not English.
      direction: the source and the target language.
      train_pairs: number of training examples of the main system, which orders the languages.
      sentences: number of sentences that were scored; None if only a published score is known.
      bleu: from 0 to 100.
      chrf: the same; None if it is unknown.
      baseline_bleu: BLEU of the bilingual baseline; None if there is no baseline.
      delta_ci95: 95 % interval of the gain over the baseline; None if it is unknown.
      difference: BLEU minus the BLEU of the main system.
      difference_ci95: its 95 % interval; None if it is unknown.
      difference_p: its p-value, see `significance.Comparison`; None if it is unknown.
      difference_adjusted_p: the p-value with the false discovery rate controlled over the directions.
      text_digest: identifies the sentences and references; "" if it is unknown.
      counts: what BLEU was computed from; None if only scores are known.
    """

    language: str
    direction: Direction
    train_pairs: int
    sentences: int | None
    bleu: float
    chrf: float | None = None
    baseline_bleu: float | None = None
    delta_ci95: tuple[float, float] | None = None
    difference: float = 0.0
    difference_ci95: tuple[float, float] | None = None
    difference_p: float | None = None
    difference_adjusted_p: float | None = None
    text_digest: str = ""
    counts: Counts | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def delta_bleu(self) -> float | None:
        """The gain over the baseline in BLEU; None if there is no baseline."""
        return None if self.baseline_bleu is None else self.bleu - self.baseline_bleu


@dataclasses.dataclass(frozen=True)
class System:
    """A system of a report: a trained run, or published scores.

    Attributes:
      name: its name in tables and figures.
      results: its scores, in any order. Directions may be missing.
      run: its run folder; None for published scores.
      budget: its size and cost.
    """

    name: str
    results: Sequence[DirectionResult]
    run: str | None = None
    budget: Budget = dataclasses.field(default_factory=Budget)

    @property
    def is_dense(self) -> bool:
        """Whether it is known to have no experts."""
        return self.budget.experts == 0

    def by_direction(self) -> dict[Direction, DirectionResult]:
        """Returns its results by direction."""
        return {result.direction: result for result in self.results}

    def average(self, directions: Iterable[Direction] | None = None) -> dict[str, Any]:
        """Returns the means of BLEU, gain and difference, and their 95 % intervals.

        Each direction has the same weight.

        Args:
          directions: the directions to use; None means all. If the system has none of them, the means
            are None.
        """
        chosen = None if directions is None else set(directions)
        results = [r for r in self.results if chosen is None or r.direction in chosen]
        values = {
            "bleu": {r.direction: r.bleu for r in results},
            "delta": {r.direction: r.delta_bleu for r in results if r.delta_bleu is not None},
            "difference": {r.direction: r.difference for r in results},
        }
        intervals = {f"{name}_ci95": self._interval(name, own) for name, own in values.items()}
        return {
            "bleu": mean(values["bleu"].values()),
            "delta_bleu": mean(values["delta"].values()),
            "difference": mean(values["difference"].values()),
            **intervals,
        }

    def _interval(self, name: str, values: Mapping[Direction, float]) -> Interval | None:
        """Returns the interval of a mean, see `significance.interval_of_mean`."""
        drawn = [self._drawn[name][place] for place in values if place in self._drawn[name]]
        known = np.array(drawn) if values and len(drawn) == len(values) else None
        return significance.interval_of_mean(list(values.values()), known)

    @functools.cached_property
    def _drawn(self) -> dict[str, dict[Direction, np.ndarray]]:
        """BLEU, the gain, and the difference from the main system, in draws of the sentences."""
        known = {r.direction: r.counts for r in self.results if r.counts is not None}
        drawn = significance.drawn_scores(
            [[counts.own, *counts.others.values()] for counts in known.values()],
            [counts.groups for counts in known.values()],
        )
        result: dict[str, dict[Direction, np.ndarray]] = {"bleu": {}, "delta": {}, "difference": {}}
        for (direction, counts), (own, *others) in zip(known.items(), drawn, strict=True):
            result["bleu"][direction] = own
            for name, other in zip(counts.others, others, strict=True):
                result[name][direction] = own - other
        return result


def mean(values: Iterable[float]) -> float | None:
    """Returns the mean of values; None if there are none."""
    numbers = list(values)
    return float(np.mean(numbers)) if numbers else None


def ordered_directions(systems: Sequence[System]) -> list[DirectionResult]:
    """Returns the results of the main system, most training pairs first.

    It is the order of the languages in tables and figures.
    """
    return sorted(systems[0].results, key=lambda r: (-r.train_pairs, r.language, r.direction))


def direction_labels(results: Sequence[DirectionResult]) -> list[str]:
    """Returns a short label of each direction: its language if this is clear, or else "fr-en"."""
    languages = [result.language for result in results]
    return [
        result.language if languages.count(result.language) == 1 else "-".join(result.direction)
        for result in results
    ]


def resource_groups(systems: Sequence[System]) -> dict[str, list[Direction]]:
    """Returns the directions with high, middle and low resources.

    GShard speaks of high and low resources but gives no thresholds. We sort the directions by number of
    training pairs and cut the list into thirds. If it does not divide by 3, the first groups have one
    more. Fewer than 3 directions are not divided, and the result is {}.
    """
    directions = [result.direction for result in ordered_directions(systems)]
    if len(directions) < len(RESOURCES):
        return {}
    bounds = [len(part) for part in np.array_split(np.arange(len(directions)), len(RESOURCES))]
    ends = np.cumsum([0, *bounds])
    return {
        name: directions[ends[number] : ends[number + 1]] for number, name in enumerate(RESOURCES)
    }


def common_directions(systems: Sequence[System]) -> list[Direction]:
    """Returns the directions that every system has, in the order of the report."""
    of_each = [set(system.by_direction()) for system in systems]
    return [
        result.direction
        for result in ordered_directions(systems)
        if all(result.direction in directions for directions in of_each)
    ]


def missing_labels(systems: Sequence[System], system: System) -> list[str]:
    """Returns the labels of the directions of the main system that another system lacks."""
    results = ordered_directions(systems)
    own = system.by_direction()
    labels = direction_labels(results)
    return [label for label, r in zip(labels, results, strict=True) if r.direction not in own]


def as_json(systems: Sequence[System]) -> list[dict[str, Any]]:
    """Returns the value of "systems" in bleu.json."""
    groups = resource_groups(systems)
    return [
        {
            "name": system.name,
            "run": system.run,
            **dataclasses.asdict(system.budget),
            "average": rounded(system.average()),
            "resources": {
                name: {
                    "directions": len(set(directions) & set(system.by_direction())),
                    **rounded(system.average(directions)),
                }
                for name, directions in groups.items()
            },
            "missing": missing_labels(systems, system),
            "languages": [_row(result) for result in ordered_directions([system])],
        }
        for system in systems
    ]


def _row(result: DirectionResult) -> dict[str, Any]:
    source, target = result.direction
    return {
        "lang": result.language,
        "source": source,
        "target": target,
        "sentences": result.sentences,
        **rounded(
            {
                "bleu": result.bleu,
                "chrf": result.chrf,
                "baseline_bleu": result.baseline_bleu,
                "delta_bleu": result.delta_bleu,
            }
        ),
        "delta_ci95": _rounded_interval(result.delta_ci95),
        "difference": round(result.difference, 2),
        "difference_ci95": _rounded_interval(result.difference_ci95),
        "difference_p": result.difference_p,
        "difference_adjusted_p": result.difference_adjusted_p,
        "text_digest": result.text_digest,
    }


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns scores and intervals as bleu.json has them."""
    return {
        name: _rounded_interval(value)
        if isinstance(value, tuple)
        else None
        if value is None
        else round(value, 2) + 0.0
        for name, value in values.items()
    }


def _rounded_interval(interval: Interval | None) -> list[float] | None:
    return interval and [round(bound, 2) + 0.0 for bound in interval]
