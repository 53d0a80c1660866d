"""The contents of a report: its sections, bleu.json and bleu.csv."""

import csv
import dataclasses
import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt.evaluation import metrics
from gshard_nmt.evaluation.systems import Result, Systems, rounded

FILES = ("bleu.json", "bleu.csv", "trendline.png", "trendline.svg", "index.html")
"""The files of a report."""


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
    """An evaluation of all languages."""

    systems: Systems  # those with their scores; the report describes the main one in full
    title: str  # title of the page
    # rows of (name, value) that say what was evaluated: run, checkpoint, budgets, fingerprint
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()  # the studies, in the order of the page
    # a sentence for the headline about the baselines; "" if they are what they should be
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
        return {name: value for name, value in average.items() if "difference" not in name}

    @property
    def headline(self) -> str:
        average, deltas = self.average, [r.delta for r in self.results if r.delta is not None]
        text = f"{average['bleu']:.1f} BLEU{bounds(average['bleu_ci95'], '.1f')} on average over "
        n, languages = len(self.results), len({r.test.language for r in self.results})
        text += f"{n:,} {'language' if n == languages else 'direction'}{'' if n == 1 else 's'}"
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
        return {
            key: metrics.joined_signatures(
                {r.test.direction_name: r.scores[key].signature for r in self.results}
            )
            for key in self.results[0].scores
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "signature": self.signatures,
            "languages": [_row(result) for result in self.results],
            "average": rounded(self.average),
            "provenance": dict(self.facts),
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


_ROW = (
    *("lang", "train_pairs", "sentences", "bleu", "chrf", "baseline_bleu", "delta_bleu"),
    *("delta_ci95", "tokens", "baseline_tokens", "source", "target"),
)


def _row(result: Result) -> dict[str, Any]:
    row = result.as_json() | {
        "train_pairs": result.test.train_pairs,
        "tokens": result.tokens,
        "baseline_tokens": result.baseline.tokens if result.baseline else None,
    }
    return {name: row[name] for name in _ROW} | rounded(result.others)


def is_in(folder: Path) -> bool:
    try:
        return "signature" in json.loads((folder / "bleu.json").read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def has_gains(results: Sequence[Result]) -> bool:
    """Returns whether figures show gains over baselines: at least half of the languages have one."""
    return sum(result.delta is not None for result in results) * 2 >= len(results)


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
