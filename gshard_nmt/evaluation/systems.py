"""What a report compares: systems, their translations and scores, and the cost of their training.

A system is opened (`opening.py`), then translates its test sets, then is scored here. A trained run, a
bilingual baseline and known scores of baselines are all systems.
"""

import collections
import dataclasses
import functools
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from gshard_nmt.evaluation import metrics, significance
from gshard_nmt.evaluation.metrics import Measured
from gshard_nmt.evaluation.significance import Comparison, Interval
from gshard_nmt.evaluation.translations import TestSet
from gshard_nmt.quantities import DAY, YEAR_DAYS
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config

Direction = tuple[str, str]
"""The source and the target language of a translation, as BCP 47 tags."""

RESOURCES = ("high", "middle", "low")
"""The three groups of languages, those with the most training pairs first."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """The size of a system and the cost of its training, as GShard Table 3 has them. None is unknown."""

    weights: int | None = None  # number of trained parameters
    experts: int | None = None  # experts of each MoE layer; 0 for a dense model
    layers: int | None = None  # layers of the encoder and of the decoder together
    steps: int | None = None
    # tokens of source and target that the system has seen, without padding
    tokens: int | None = None
    devices: int | None = None
    steps_per_second: float | None = None
    batch_tokens: float | None = None  # tokens of a step, counted as `tokens`
    device_years: float | None = None  # devices multiplied by years of training
    days: float | None = None

    @classmethod
    def of(cls, run: RunFolder) -> Self:
        """Returns the budget of a run; the devices are those of its last mesh."""
        config, record = read_run_config(run.config), run.budget()
        model, devices = config.model, math.prod(config.mesh.shape)
        layers = model.encoder_layers + model.decoder_layers
        budget = cls(experts=model.experts, layers=layers, devices=devices)
        if not record:
            return budget
        steps, seconds = record["steps"], record["seconds"]
        tokens = sum(record["tokens_by_language"].values())
        return dataclasses.replace(
            budget,
            weights=record["parameters"],
            steps=steps,
            tokens=tokens,
            steps_per_second=steps / seconds if seconds else None,
            batch_tokens=tokens / steps if steps else None,
            device_years=devices * seconds / (YEAR_DAYS * DAY),
            days=seconds / DAY,
        )

    @classmethod
    def total(cls, budgets: Sequence[Self]) -> Self:
        """Returns the cost of several models, trained one after the other; None if a part is unknown."""
        names = ("weights", "steps", "tokens", "device_years", "days")
        values = {name: [getattr(budget, name) for budget in budgets] for name in names}
        return cls(**{name: sum(n) for name, n in values.items() if n and None not in n})


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """The scores of a system on one test set. If only a score is known, others are None or empty."""

    test: TestSet  # its training pairs are those of the main run and order the languages
    bleu: float  # from 0 to 100, as chrF
    chrf: float | None = None
    lines: Sequence[str] = ()  # the translations
    # every metric by its key, with its signature
    scores: Mapping[str, Measured] = dataclasses.field(default_factory=dict)
    statistics: np.ndarray | None = None  # of each sentence, see `significance.statistics`
    tokens: int | None = None  # training tokens of the language that the system has seen, if known
    baseline: "Result | None" = None  # the result of the bilingual baseline
    gain: Comparison | None = None  # the comparison with the translations of the baseline
    main: "Result | None" = None  # the result of the main run; None if this is the main run
    comparison: Comparison | None = None  # the comparison with the main run
    adjusted_p: float | None = None  # its p-value with the false discovery rate controlled

    @property
    def direction(self) -> Direction:
        return self.test.source, self.test.target

    @property
    def delta(self) -> float | None:
        """The gain in BLEU over the baseline; None without one."""
        return None if self.baseline is None else self.bleu - self.baseline.bleu

    @property
    def delta_ci95(self) -> Interval | None:
        return self.gain.interval if self.gain else None

    @property
    def difference(self) -> float:
        """BLEU minus the BLEU of the main run."""
        return self.bleu - self.main.bleu if self.main else 0.0

    @property
    def others(self) -> dict[str, float]:
        """The metrics of `--metrics` by their keys; all outputs have a column for each."""
        return {key: each.value for key, each in self.scores.items() if key not in metrics.ALWAYS}

    def as_json(self) -> dict[str, Any]:
        """Returns its row in "systems" of bleu.json."""
        compared = self.comparison or (None if self.main else Comparison(0.0, (0.0, 0.0), 1.0))
        return {
            "lang": self.test.language,
            "source": self.test.source,
            "target": self.test.target,
            "sentences": len(self.lines),
            **rounded(
                {
                    "bleu": self.bleu,
                    "chrf": self.chrf,
                    "baseline_bleu": self.baseline.bleu if self.baseline else None,
                    "delta_bleu": self.delta,
                    "delta_ci95": self.delta_ci95,
                    "difference": self.difference,
                    "difference_ci95": compared and compared.interval,
                }
            ),
            "difference_p": compared and compared.p_value,
            "difference_adjusted_p": self.adjusted_p if self.main else 1.0,
        }


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """A system of a report: a trained run, or the known scores of baselines."""

    name: str  # its name in tables and figures, different from all others
    tests: Sequence[TestSet] = ()  # the test sets of its directions
    run: RunFolder | None = None  # None for known scores
    # known scores by language, or by direction such as "fr-en"
    bleu: Mapping[str, float] = dataclasses.field(default_factory=dict)
    budget: Budget = dataclasses.field(default_factory=Budget)
    # its translations by direction, after it has translated
    lines: Mapping[Direction, Sequence[str]] = dataclasses.field(default_factory=dict)
    made_by: str = ""  # how they were made
    results: Sequence[Result] = ()  # its scores, after it was scored

    @property
    def is_dense(self) -> bool:
        return self.budget.experts == 0

    def by_direction(self) -> dict[Direction, Result]:
        return {result.direction: result for result in self.results}

    def ordered(self) -> list[Result]:
        """Returns the results in the order of tables and figures, most training pairs first."""
        return sorted(
            self.results, key=lambda r: (-r.test.train_pairs, r.test.language, r.direction)
        )

    def average(self, directions: Iterable[Direction] | None = None) -> dict[str, Any]:
        """Returns the means of BLEU, gain and difference over directions, with their 95 % intervals.

        Each direction has the same weight. Without directions, the means are None.
        """
        chosen = None if directions is None else set(directions)
        results = [r for r in self.results if chosen is None or r.direction in chosen]
        average: dict[str, Any] = {}
        for name, key in (("bleu", "bleu"), ("delta", "delta_bleu"), ("difference", "difference")):
            known = [r for r in results if getattr(r, name) is not None]
            values = [getattr(r, name) for r in known]
            drawn = [d for r in known if (d := self._drawn[name].get(r.direction)) is not None]
            average[key] = float(np.mean(values)) if values else None
            average[f"{name}_ci95"] = significance.interval_of_mean(
                values, np.array(drawn) if values and len(drawn) == len(values) else None
            )
        return average

    @functools.cached_property
    def _drawn(self) -> dict[str, dict[Direction, np.ndarray]]:
        """BLEU, the gain, and the difference from the main run, in draws of the sentences."""
        known = [result for result in self.results if result.statistics is not None]
        sides = [
            {
                name: other.statistics
                for name, other in (("bleu", r), ("difference", r.main or r), ("delta", r.baseline))
                if other and other.statistics is not None
            }
            for r in known
        ]
        drawn = significance.drawn_scores(
            [list(row.values()) for row in sides], [r.test.groups for r in known]
        )
        result: dict[str, dict[Direction, np.ndarray]] = {"bleu": {}, "delta": {}, "difference": {}}
        for each, row, (own, *others) in zip(known, sides, drawn, strict=True):
            result["bleu"][each.direction] = own
            for name, other in zip(list(row)[1:], others, strict=True):
                result[name][each.direction] = own - other
        return result


@dataclasses.dataclass(frozen=True)
class Systems:
    """All systems of a report."""

    main: System  # the run that the report describes in full
    others: Sequence[System] = ()  # the runs beside it
    baselines: Sequence[System] = ()  # the bilingual ones: a run of each language, or known scores

    @property
    def compared(self) -> list[System]:
        return [self.main, *self.others]

    def baselines_together(self) -> System | None:
        """Returns all bilingual baselines as one system; None if there are none."""
        results = [r.baseline for r in self.main.results if r.baseline is not None]
        budget = Budget.total([each.budget for each in self.baselines if each.run])
        return System("bilingual baselines", budget=budget, results=results) if results else None

    def each(self, change: Callable[[System], System]) -> Self:
        main, *others = map(change, self.compared)
        return type(self)(main, others, [*map(change, self.baselines)])


def scored(systems: Systems, names: Sequence[str], advance: Callable[[], None]) -> Systems:
    """Returns the systems with their scores and comparisons.

    The main run has the metrics of these names; the others have BLEU and chrF. `advance` is called after
    each test set of the main run.
    """
    baselines = [_scored(each) for each in systems.baselines]
    known = {r.direction: r for each in baselines for r in each.results}
    main = _scored(systems.main, names, known, advance=advance)
    of_main = main.by_direction()
    others = [_scored(each, baselines=known, main=of_main) for each in systems.others]
    return Systems(main, others, baselines)


def _scored(
    system: System,
    names: Sequence[str] = (),
    baselines: Mapping[Direction, Result] = types.MappingProxyType({}),
    main: Mapping[Direction, Result] = types.MappingProxyType({}),
    advance: Callable[[], None] = lambda: None,
) -> System:
    results = []
    tokens = system.run.budget().get("tokens_by_language", {}) if system.run else {}
    for test in system.tests:
        direction = test.source, test.target
        if system.bleu:
            result = Result(test, system.bleu[key_of(system.bleu, test)])
        else:
            others = baselines.get(direction), main.get(direction)
            result = score_lines(test, system.lines[direction], names, *others)
        results.append(dataclasses.replace(result, tokens=tokens.get(test.language)))
        advance()
    return dataclasses.replace(system, results=adjusted(results))


def score_lines(
    test: TestSet,
    lines: Sequence[str],
    names: Sequence[str] = (),
    baseline: Result | None = None,
    main: Result | None = None,
) -> Result:
    """Scores the translations of a test set, and compares them with those of other systems."""
    scores = metrics.scores(lines, test.all_references, test.target, names)
    statistics = significance.statistics(lines, test.all_references, test.target)

    def compared(other: Result | None) -> Comparison | None:
        if other is None or other.statistics is None:
            return None
        return significance.compare_statistics(statistics, other.statistics)

    own = test, scores["bleu"].value, scores["chrf"].value, lines, scores, statistics
    gain, comparison = compared(baseline), compared(main)
    return Result(*own, baseline=baseline, gain=gain, main=main, comparison=comparison)


def adjusted(results: Sequence[Result]) -> list[Result]:
    """Returns results with adjusted p-values of their comparisons, which are one family."""
    known = [result.comparison.p_value for result in results if result.comparison]
    values = iter(significance.adjusted_p_values(known))
    return [
        dataclasses.replace(result, adjusted_p=next(values)) if result.comparison else result
        for result in results
    ]


def key_of(values: Mapping[str, object], test: TestSet) -> str:
    """Returns the key of a test set in a mapping: its direction or its language; "" if it has none."""
    return next((key for key in (test.direction_name, test.language) if key in values), "")


def labels(results: Sequence[Result]) -> list[str]:
    """Returns a short label of each direction: its language if this is clear, or else "fr-en"."""
    tests = [result.test for result in results]
    counts = collections.Counter(test.language for test in tests)
    return [t.language if counts[t.language] == 1 else t.direction_name for t in tests]


def resource_groups(main: System) -> dict[str, list[Direction]]:
    """Returns the directions with high, middle and low resources.

    GShard speaks of high and low resources but gives no thresholds. We sort the directions by number of
    training pairs and cut the list into thirds. If it does not divide by 3, the first groups have one
    more. Fewer than 3 directions are not divided, and the result is {}.
    """
    directions = [result.direction for result in main.ordered()]
    parts = np.array_split(np.arange(len(directions)), len(RESOURCES))
    named = zip(RESOURCES, parts, strict=True)
    return {name: [directions[n] for n in part] for name, part in named} if parts[-1].size else {}


def missing_labels(main: System, system: System) -> list[str]:
    """Returns the labels of the directions of the main system that another system lacks."""
    results, own = main.ordered(), system.by_direction()
    named = zip(labels(results), results, strict=True)
    return [name for name, result in named if result.direction not in own]


def as_json(systems: Sequence[System]) -> list[dict[str, Any]]:
    """Returns the value of "systems" in bleu.json."""
    groups = resource_groups(systems[0])
    return [
        {
            "name": system.name,
            "run": str(system.run.path) if system.run else None,
            **dataclasses.asdict(system.budget),
            "average": rounded(system.average()),
            "resources": {
                name: {
                    "directions": len(set(directions) & set(system.by_direction())),
                    **rounded(system.average(directions)),
                }
                for name, directions in groups.items()
            },
            "missing": missing_labels(systems[0], system),
            "languages": [result.as_json() for result in system.ordered()],
        }
        for system in systems
    ]


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, tuple):
            return [*map(short, value)]
        # Adding 0.0 turns -0.0 into 0.0.
        return None if value is None else round(value, 2) + 0.0

    return {name: short(value) for name, value in values.items()}
