"""Test sentences in the training text: their section of the report, and scores without them."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gshard_nmt.data.cleaning.overlap import NEAR, Overlap, OverlapSearch, Side
from gshard_nmt.data.sets.corpus import ENGLISH, read_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.report import Evaluation, Section, Training
from gshard_nmt.evaluation.systems.systems import Systems
from gshard_nmt.evaluation.texts.corpora import Pairs
from gshard_nmt.evaluation.texts.translations import TestSet

_EXAMPLES = 3
_SIDES: tuple[Side, Side] = ("source", "target")
# fmt: off
_COLUMNS = {
    "sentences": "sentences", "source_exact": "source exact", "source_near": "source near",
    "target_exact": "reference exact", "target_near": "reference near", "both_sides": "both sides",
    "left_out": "left out of the scores",
}
# fmt: on


def read_training(
    tests: Sequence[TestSet], pairs: Pairs, advance: Callable[[], None] = lambda: None
) -> Training:
    """Reads the training text of the languages of test sets once, and compares it with them.

    `advance` is called when the text of a language has been read.
    """
    search = OverlapSearch(tests)
    count, problems = 0, []
    for language in dict.fromkeys(test.language for test in tests):
        if language not in pairs:
            continue
        for pair in pairs[language]:
            direction = (pair.source, pair.target)
            if pair.source == ENGLISH:
                direction = (pair.target, pair.source)
            try:
                # Counting while it is read keeps a corpus out of memory.
                numbers, rows = itertools.count(), read_pairs(pair, "train", *direction)
                search.add(direction, (row for row, _ in zip(rows, numbers, strict=False)))
                count += next(numbers)
            except UserError as error:
                problems.append(f"The training text of {language} cannot be compared: {error}")
        advance()
    return Training(count, problems, search.overlaps)


def leave_out(systems: Systems, training: Training) -> Systems:
    """Returns the systems without the test sentences that overlap with the training text."""
    lines = {(o.test.source, o.test.target): o.lines() for o in training.overlaps}
    systems = systems.each(lambda system: system.without(lines))
    if not systems.main.tests:
        raise UserError(
            "--leave_out_overlap leaves out all test sentences, because all are in the training text. "
            "Give a corpus with another test set."
        )
    return systems


def overlap_section(evaluation: Evaluation) -> Section:
    """Returns the number of test sentences in the training text, with examples."""
    training, is_left_out = evaluation.training, evaluation.request.options.leave_out_overlap
    data = {
        "training_pairs": training.pairs,
        "left_out": is_left_out,
        "directions": [_as_json(overlap, is_left_out) for overlap in training.overlaps],
    }
    title, alarms = "Overlap of test and training text", tuple(_alarms(training.overlaps))
    return Section("overlap", title, _html(training, data), data, alarms)


def _alarms(overlaps: Sequence[Overlap]) -> Iterator[str]:
    alarming = [overlap for overlap in overlaps if overlap.is_alarming]
    if alarming:
        names = [overlap.test.direction_name for overlap in alarming]
        rest = f" and {len(names) - 6} more" if len(names) > 6 else ""
        yield (
            f"{', '.join(names[:6])}{rest}: "
            f"{sum(len(overlap.matches['source']) for overlap in alarming):,} of "
            f"{sum(len(overlap.test.sources) for overlap in alarming):,} test sources are in the "
            f"training text, {sum(len(overlap.pairs) for overlap in alarming):,} of them with their "
            "reference. gshard-eval --leave_out_overlap scores without them."
        )


def _as_json(overlap: Overlap, is_left_out: bool) -> dict[str, Any]:
    lines, test = overlap.lines(), overlap.test
    counts = {
        f"{side}_{name}": overlap.count(side, name == "exact")
        for side in _SIDES
        for name in ("exact", "near")
    }
    examples = []
    for n in sorted(lines)[:_EXAMPLES]:
        example: dict[str, Any] = {"line": n + 1}
        for side, texts in zip(_SIDES, (test.sources, test.references), strict=True):
            match = overlap.matches[side].get(n)
            example[side] = {"test": texts[n], "training": match.training} if match else None
        examples.append(example)
    return {
        "source": test.source,
        "target": test.target,
        "sentences": len(test.sources),
        **counts,
        "both_sides_exact": len(overlap.exact_pairs),
        "both_sides": len(overlap.pairs),
        "left_out": len(lines) if is_left_out else 0,
        "examples": examples,
    }


def _html(training: Training, data: Mapping[str, Any]) -> str:
    if not training.pairs:
        return "<p>The corpus has no training text, so overlap is unknown.</p>"
    rows, examples = [], []
    for row in data["directions"]:
        direction = f"{row['source']}-{row['target']}"
        rows.append((direction, *(f"{row[name]:,}" for name in _COLUMNS)))
        parts = [example[side] for example in row["examples"] for side in _SIDES if example[side]]
        tables = "".join(web_page.texts(part.items()) for part in parts)
        examples += [web_page.folded(direction, tables)] if parts else []
    return (
        f"<p>Compared with {training.pairs:,} training pairs. Exact: only case, spaces, "
        "punctuation, digits and placeholders differ. Near: both sentences share at "
        f"least {100 * NEAR:.0f} % of the word triples of the longer one.</p>\n"
        f"{web_page.table(('direction', *_COLUMNS.values()), rows)}\n{''.join(examples)}"
    )
