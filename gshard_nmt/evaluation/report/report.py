"""The contents of a report: what a user asks, what its sections are made of, bleu.json and bleu.csv."""

import csv
import dataclasses
import functools
import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt.data.cleaning.overlap import Overlap
from gshard_nmt.decoding.runs import Choices
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.metrics import metrics
from gshard_nmt.evaluation.metrics.metrics import FINE, Measures
from gshard_nmt.evaluation.systems.opening import Others
from gshard_nmt.evaluation.systems.systems import Result, Systems, as_json, rounded
from gshard_nmt.evaluation.texts.test_sets import Published

FILES = ("bleu.json", "bleu.csv", "trendline.png", "trendline.svg", "index.html")
"""The files of a report."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user measures. A bucket of lengths begins at each of `length_edges`, in source words."""

    measures: Measures = dataclasses.field(default_factory=Measures)
    length_edges: tuple[int, ...] = (10, 20, 30, 40)
    leave_out_overlap: bool = False

    def check(self) -> None:
        self.measures.check()
        edges = [0, *self.length_edges]
        if any(after <= before for before, after in itertools.pairwise(edges)):
            raise UserError(
                f"--length_edges is {' '.join(map(str, self.length_edges))}; lengths are whole numbers "
                "from 1 in ascending order. Give for example --length_edges 10 20 30 40."
            )


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user asks of a report.

    Attributes:
      baselines: a folder of run folders that are named by language, or a JSON file {"fr": 30.1, ...}.
      sentences: number of sentences of each language, from the start of the split; 0 means all.
      choices: the weights of the runs, and changed settings. Each baseline uses its best checkpoint.
      options: the metrics, the buckets of lengths, and whether to leave out overlap.
      published: a test set that takes the place of the corpus.
      others: other runs and published scores to compare the run with.
      command: the command that makes the report. The page shows it.
      count_experts: counts which experts the runs use for the test sets; None leaves this out.
    """

    baselines: Path | None = None
    sentences: int = 0
    choices: Choices = dataclasses.field(default_factory=Choices)
    options: Options = dataclasses.field(default_factory=Options)
    published: Published | None = None
    others: Others = dataclasses.field(default_factory=Others)
    command: str = ""
    count_experts: Callable[..., Any] | None = None


@dataclasses.dataclass(frozen=True)
class Caution:
    """Something that a reader of a comparison must know. The terminal shows those that are alarms too."""

    name: str
    text: str
    is_alarm: bool = False


@dataclasses.dataclass(frozen=True)
class Training:
    """The training text of a corpus: the pairs read, the problems, and the overlap with each test set."""

    pairs: int = 0
    problems: Sequence[str] = ()
    overlaps: Sequence[Overlap] = ()


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What the sections of a report are made of. A section is a function of it, see `evaluate.SECTIONS`.

    Attributes:
      systems: the systems with their scores.
      request: what the user has asked.
      translated: the systems before sentences were left out.
      training: the training text of the corpus.
      alarms: what is wrong with the files of the test sets.
      cautions: what can mislead in the comparison with other systems.
    """

    systems: Systems
    request: Request
    translated: Systems
    training: Training = dataclasses.field(default_factory=Training)
    alarms: Sequence[str] = ()
    cautions: Sequence[Caution] = ()


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the report: `name` and `data` are in bleu.json, `title` and `html` on the page.

    The terminal shows its alarms and notes too, and the top of the page its alarms.
    """

    name: str
    title: str
    html: str
    data: Any
    alarms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Report:
    """An evaluation of all languages.

    Attributes:
      systems: the systems with their scores. The report describes the main one in full.
      title: title of the page.
      facts: rows of (name, value) that say what was evaluated: run, checkpoint, budgets, fingerprint.
      sections: the studies, in the order of the page.
      caution: a sentence for the headline about the baselines; "" if they are what they should be.
    """

    systems: Systems
    title: str
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
    caution: str = ""

    @functools.cached_property
    def results(self) -> list[Result]:
        """The scores of the main system, most training pairs first."""
        return self.systems.main.ordered()

    @property
    def alarms(self) -> list[str]:
        return [alarm for section in self.sections for alarm in section.alarms]

    @functools.cached_property
    def average(self) -> dict[str, Any]:
        """The means over languages with their intervals, see `System.average`."""
        average = self.systems.main.average()
        return rounded({name: value for name, value in average.items() if "difference" not in name})

    @property
    def headline(self) -> str:
        average, deltas = self.average, [r.delta for r in self.results if r.delta is not None]
        text = f"{average['bleu']:.1f} BLEU{bounds(average['bleu_ci95'], '.1f')} on average over "
        text += f"{len(self.results):,} language{'' if len(self.results) == 1 else 's'}"
        if not deltas:
            return f"{text}."
        text += (
            f", {average['delta_bleu']:+.1f}{bounds(average['delta_ci95'], '+.1f')} compared with "
        )
        better = f"Better than its baseline in {sum(d > 0 for d in deltas)} of {len(deltas):,}."
        counted = [section.notes[0] for section in self.sections if section.name == "significance"]
        parts = (f"{text}bilingual baselines.", *(counted or [better]), self.caution)
        return " ".join(filter(None, parts))

    @functools.cached_property
    def signatures(self) -> dict[str, str]:
        """The signature of each metric. A signature that differs names its directions."""
        return signatures_of(self.results)

    def as_json(self) -> dict[str, Any]:
        return {
            "signature": self.signatures,
            "languages": [_row(result) for result in self.results],
            "average": self.average,
            "provenance": dict(self.facts),
            "systems": as_json(self.systems.compared),
            **{section.name: section.data for section in self.sections},
        }

    def as_csv(self) -> str:
        """Returns the contents of bleu.csv: the languages of bleu.json."""
        text = io.StringIO()
        rows = [_row(result) for result in self.results]
        names = [name for name in rows[0] if name != "delta_ci95"]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*names, "delta_ci95_low", "delta_ci95_high"])
        for row in rows:
            writer.writerow([*(row[name] for name in names), *(row["delta_ci95"] or (None, None))])
        return text.getvalue()


def signatures_of(results: Sequence[Result]) -> dict[str, str]:
    return {
        key: metrics.joined_signatures(
            {result.test.direction_name: result.scores[key].signature for result in results}
        )
        for key in results[0].scores
    }


# fmt: off
_ROW = (
    "lang", "train_pairs", "sentences", "bleu", "chrf", "baseline_bleu", "delta_bleu", "delta_ci95",
    "tokens", "baseline_tokens", "source", "target",
)
# fmt: on


def _row(result: Result) -> dict[str, Any]:
    row = result.as_json() | {
        "train_pairs": result.test.train_pairs,
        "tokens": result.tokens,
        "baseline_tokens": result.baseline.tokens if result.baseline else None,
    }
    others = {key: round(value, 4 if key in FINE else 2) for key, value in result.others.items()}
    return {name: row[name] for name in _ROW} | others


def is_in(folder: Path) -> bool:
    try:
        return "signature" in json.loads((folder / "bleu.json").read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def has_gains(results: Sequence[Result]) -> bool:
    """Returns whether figures show gains over baselines: at least half of the languages have one."""
    return sum(result.delta is not None for result in results) * 2 >= len(results)


def score_text(key: str, value: float) -> str:
    return f"{value:.4f}" if key in FINE else f"{value:.1f}"


def bounds(interval: Sequence[float] | None, form: str) -> str:
    """Returns an interval in brackets after its mean; "" if it is unknown."""
    return f" ({interval[0]:{form}} to {interval[1]:{form}})" if interval else ""


def interval_text(interval: Sequence[float] | None) -> str:
    """Returns an interval as users read it; "" if it is unknown."""
    return f"{interval[0]:+.1f} to {interval[1]:+.1f}" if interval else ""


def average_text(average: Mapping[str, Any], name: str) -> str:
    """Returns the mean BLEU, or the mean gain if the name is "delta", with its interval."""
    form, value = (".1f", average["bleu"]) if name == "bleu" else ("+.1f", average["delta_bleu"])
    return "–" if value is None else f"{value:{form}}{bounds(average[f'{name}_ci95'], form)}"
