"""The section of the report about test sentences in the training text, and scores without them."""

import dataclasses
import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gshard_nmt import web_page
from gshard_nmt.data.cleaning import overlap as search
from gshard_nmt.data.cleaning.overlap import NEAR, OverlapSearch, Side
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report.report import Section
from gshard_nmt.evaluation.texts.translations import TestSet

__all__ = ["Overlap", "OverlapSearch", "leave_out", "section"]

EXAMPLES = 3
_SIDES: tuple[Side, Side] = ("source", "target")
Overlap = search.Overlap[TestSet]


def _alarms(overlaps: Sequence[Overlap]) -> Iterator[str]:
    """Yields one sentence if the overlap of any direction is too large."""
    alarming = [overlap for overlap in overlaps if overlap.is_alarming]
    if not alarming:
        return
    names = [f"{overlap.test.source}-{overlap.test.target}" for overlap in alarming]
    rest = f" and {len(names) - 6} more" if len(names) > 6 else ""
    yield (
        f"{', '.join(names[:6])}{rest}: "
        f"{sum(len(overlap.matches['source']) for overlap in alarming):,} of "
        f"{sum(len(overlap.test.sources) for overlap in alarming):,} test sources are in the training "
        f"text, {sum(len(overlap.pairs) for overlap in alarming):,} of them with their reference. "
        "gshard-eval --leave_out_overlap scores without them."
    )


def section(overlaps: Sequence[Overlap], training_lines: int, is_left_out: bool) -> Section:
    """Returns the section of the report.

    Args:
      overlaps: the overlap of each direction.
      training_lines: number of training pairs that were compared; 0 if the corpus has no training text.
      is_left_out: whether the scores are without the sentences that overlap.
    """
    data = {
        "training_pairs": training_lines,
        "left_out": is_left_out,
        "directions": [_as_json(overlap, is_left_out) for overlap in overlaps],
    }
    title = "Overlap of test and training text"
    return Section("overlap", title, _html(overlaps, data), data, tuple(_alarms(overlaps)))


def leave_out(
    overlaps: Sequence[Overlap], systems: Sequence[dict[tuple[str, str], Sequence[str]]]
) -> list[TestSet]:
    """Removes the sentences that overlap with the training text from test sets and translations.

    Args:
      overlaps: the overlap of each test set.
      systems: the translations of each system by direction; changed here.

    Returns:
      The test sets that have sentences left.

    Raises:
      UserError: no sentence is left.
    """
    tests = []
    for overlap in overlaps:
        left_out, test = overlap.lines(), overlap.test

        def remaining(lines: Sequence[str], left_out: set[int] = left_out) -> list[str]:
            return [line for number, line in enumerate(lines) if number not in left_out]

        sources, references = remaining(test.sources), map(remaining, test.all_references)
        first, *others = references
        for lines in systems:
            if (test.source, test.target) in lines:
                lines[test.source, test.target] = remaining(lines[test.source, test.target])
        if sources:
            tests.append(
                dataclasses.replace(
                    test, sources=sources, references=first, other_references=tuple(others)
                )
            )
    if not tests:
        raise UserError(
            "--leave_out_overlap leaves out all test sentences, because all are in the training text. "
            "Give a corpus with another test set."
        )
    return tests


def _as_json(overlap: Overlap, is_left_out: bool) -> dict[str, Any]:
    examples = sorted(overlap.lines())[:EXAMPLES]
    return {
        "source": overlap.test.source,
        "target": overlap.test.target,
        "sentences": len(overlap.test.sources),
        **{
            f"{side}_{name}": overlap.count(side, name == "exact")
            for side in _SIDES
            for name in ("exact", "near")
        },
        "both_sides_exact": len(overlap.exact_pairs),
        "both_sides": len(overlap.pairs),
        "left_out": len(overlap.lines()) if is_left_out else 0,
        "examples": [
            {"line": n + 1, **{side: _example(overlap, side, n) for side in _SIDES}}
            for n in examples
        ],
    }


def _example(overlap: Overlap, side: Side, number: int) -> Mapping[str, str] | None:
    match = overlap.matches[side].get(number)
    lines = overlap.test.sources if side == "source" else overlap.test.references
    return {"test": lines[number], "training": match.training} if match else None


_COLUMNS = (
    *("direction", "sentences", "source exact", "source near", "reference exact", "reference near"),
    *("both sides", "left out of the scores"),
)


def _html(overlaps: Sequence[Overlap], data: Mapping[str, Any]) -> str:
    if not data["training_pairs"]:
        return "<p>The corpus has no training text, so overlap is unknown.</p>"
    rows, examples = [], []
    for overlap, row in zip(overlaps, data["directions"], strict=True):
        direction = f"{row['source']}-{row['target']}"
        names = ("sentences", "source_exact", "source_near", "target_exact", "target_near")
        cells = (f"{row[name]:,}" for name in (*names, "both_sides", "left_out"))
        rows.append((direction, *cells))
        tables = "".join(
            f"<table class='sample'><tr><th>test</th><td dir='auto'>{html.escape(part['test'])}</td></tr>"
            f"<tr><th>training</th><td dir='auto'>{html.escape(part['training'])}</td></tr></table>"
            for example in row["examples"]
            for part in (example["source"], example["target"])
            if part
        )
        if overlap.lines():
            summary = f"<summary>{html.escape(direction)}</summary>"
            examples.append(f"<details>{summary}{tables}</details>")
    return (
        f"<p>Compared with {data['training_pairs']:,} training pairs. Exact: only case, spaces, "
        "punctuation, digits and placeholders differ. Near: both sentences share at "
        f"least {100 * NEAR:.0f} % of the word triples of the longer one.</p>\n"
        f"{web_page.table(_COLUMNS, rows)}\n{''.join(examples)}"
    )
