"""Looks for faults of a test set as a whole: sides swapped, a wrong language, lines shifted or cut.

The checks compare the test set with the training text of the corpus. They also compare line N of one list
with the lines near N of another list.
"""

import collections
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gshard_nmt.data.text import normal_form
from gshard_nmt.data.text.language_profiles import LanguageProfiles
from gshard_nmt.evaluation.texts.translations import TestSet

Rows = Sequence[tuple[str, str]]
"""Pairs of (source, target) sentences."""

_LINES = 500
"""Lines of a test set that are enough to recognize its languages."""
_MARGIN = 0.3
"""In nats per triple of characters. All lines together decide, so it is smaller than for one line."""
_SHIFTS = (-3, -2, -1, 1, 2, 3)
_BLOCK = 25
"""The least number of neighboring lines in which a shift is looked for."""
_MOST_BLOCKS = 4
_LENGTH_CHANGE = 1.4
_LEAST_LINES = 20
_MOST_REPEATS = 2
"""An output is frequent if more lines of its direction have it."""


def alarms(
    tests: Sequence[TestSet],
    outputs: Sequence[Sequence[str]],
    training: Mapping[tuple[str, str], Rows],
) -> Iterator[str]:
    """Yields a sentence for each fault of the test sets.

    Args:
      tests: the test sets.
      outputs: the translations of each test set.
      training: the first sentence pairs of the training text, by (source language, target language).
    """
    profiles = _training_profiles(training)
    for test, lines in zip(tests, outputs, strict=True):
        yield from _language_alarms(test, tests, profiles)
        yield from _shift_alarms(test, lines)
        yield from _cut_alarms(test, training.get((test.source, test.target), ()))
    yield from _identical_alarms(tests, outputs)


def _name(test: TestSet) -> str:
    return f"{test.source}-{test.target}"


def _training_profiles(training: Mapping[tuple[str, str], Rows]) -> LanguageProfiles:
    text: dict[str, list[str]] = collections.defaultdict(list)
    for languages, rows in training.items():
        for side, language in enumerate(languages):
            text[language] += [row[side] for row in rows]
    return LanguageProfiles(text)


def _language_alarms(
    test: TestSet, tests: Sequence[TestSet], profiles: LanguageProfiles
) -> Iterator[str]:
    """Compares the languages of both sides with the training text, and with the other test sets."""
    sides = [lines[:_LINES] for lines in (test.sources, test.references)]
    if sum(map(len, sides[1])) < _LINES:
        return
    seen = [_language(lines, profiles) for lines in sides]
    wrong = [
        language is not None and expected in profiles.languages and language != expected
        for language, expected in zip(seen, (test.source, test.target), strict=True)
    ]
    is_third = any(language not in (None, test.source, test.target) for language in seen)
    if seen == [test.target, test.source] or (not is_third and _others_say_swapped(test, tests)):
        yield (
            f"{_name(test)}: sources and references look swapped: the sources are in {test.target} and "
            f"the references in {test.source}."
        )
        return
    for name, language, expected, is_wrong in zip(
        ("sources", "references"), seen, (test.source, test.target), wrong, strict=True
    ):
        if is_wrong:
            yield f"{_name(test)}: the {name} look like {language}, not like {expected}."


def _language(lines: Sequence[str], profiles: LanguageProfiles) -> str | None:
    """Returns the language of lines if it is clear; otherwise None."""
    rows = [profiles.likelihoods(line) for line in lines if line.strip()]
    if len(profiles.languages) < 2 or not rows:
        return None
    means = np.mean(rows, axis=0)
    second, best = np.argsort(means)[-2:]
    return profiles.languages[best] if means[best] > means[second] + _MARGIN else None


def _others_say_swapped(test: TestSet, tests: Sequence[TestSet]) -> bool:
    """Returns whether the other test sets of a language explain the other side of this one better."""
    others = [other for other in tests if other.language != test.language]
    for language, side, other_side in (
        (test.target, test.references, test.sources),
        (test.source, test.sources, test.references),
    ):
        text = [
            line
            for other in others
            for tag, lines in ((other.source, other.sources), (other.target, other.references))
            if tag == language
            for line in lines[:_LINES]
        ]
        profile = LanguageProfiles({language: text})
        if language in profile.languages:
            likelihoods = [
                profile.likelihood(lines[:_LINES], language) for lines in (side, other_side)
            ]
            if likelihoods[1] > likelihoods[0] + _MARGIN:
                return True
    return False


def _shift_alarms(test: TestSet, outputs: Sequence[str]) -> Iterator[str]:
    """Compares outputs and references with their neighbors, in blocks of lines.

    If an output agrees better with the reference of a neighbor, the lengths of the sources say which of
    the two lists is shifted.
    """
    count = len(outputs)
    blocks = np.array_split(np.arange(count), max(1, min(_MOST_BLOCKS, count // _BLOCK)))
    for block in blocks if count >= _LEAST_LINES else ():
        first, last = int(block[0]), int(block[-1]) + 1
        sources, references, translations = (
            lines[first:last] for lines in (test.sources, test.references, outputs)
        )
        where = f"lines {first + 1} to {last}" if len(blocks) > 1 else "all lines"
        shift = _best_shift(translations, references)
        by_length = _best_length_shift(sources, references)
        if (
            shift
            and by_length != shift
            and _length_gain(sources, references, shift)
            < _length_gain(translations, sources, shift)
        ):
            yield (
                f"{_name(test)}: the outputs look shifted by {-shift:+d} against their sources in "
                f"{where}."
            )
            return
        if shift or by_length:
            yield (
                f"{_name(test)}: the references look shifted by {shift or by_length:+d} against the "
                f"sources in {where}."
            )
            return


def _best_shift(outputs: Sequence[str], references: Sequence[str]) -> int:
    """Returns the shift at which outputs agree clearly better with references; 0 if there is none."""
    out, ref = (
        [frozenset(normal_form.words(line)) for line in lines] for lines in (outputs, references)
    )
    agreements = {
        shift: float(np.mean([_f1(a, b) for a, b in _shifted(out, ref, shift) if b] or [0.0]))
        for shift in (0, *_SHIFTS)
    }
    best = max(agreements, key=lambda shift: agreements[shift])
    return best if agreements[best] > max(1.5 * agreements[0] + 0.05, 0.15) else 0


def _f1(first: frozenset[str], second: frozenset[str]) -> float:
    return 2 * len(first & second) / max(len(first) + len(second), 1)


def _shifted(first: Sequence, second: Sequence, shift: int) -> Iterator[tuple]:
    """Yields element n of the first list with element n + shift of the second."""
    for number, element in enumerate(first):
        if 0 <= number + shift < len(second):
            yield element, second[number + shift]


def _length_agreement(first: Sequence[str], second: Sequence[str], shift: int) -> float:
    """Returns the correlation of the logarithms of the lengths, -1 to 1; 0 if all lengths are equal."""
    logs = np.array(
        [(math.log1p(len(a)), math.log1p(len(b))) for a, b in _shifted(first, second, shift)]
    )
    if len(logs) < 3 or logs.std(0).min() < 1e-6:
        return 0.0
    return float(np.corrcoef(logs.T)[0, 1])


def _length_gain(first: Sequence[str], second: Sequence[str], shift: int) -> float:
    agreements = [_length_agreement(first, second, s) for s in (0, shift)]
    return agreements[1] - agreements[0]


def _best_length_shift(sources: Sequence[str], references: Sequence[str]) -> int:
    """Returns the shift at which the lengths agree much better; 0 if there is none."""
    gains = {shift: _length_gain(sources, references, shift) for shift in _SHIFTS}
    best = max(_SHIFTS, key=lambda shift: gains[shift])
    agrees = _length_agreement(sources, references, best) > 0.6
    return best if agrees and gains[best] > 0.4 else 0


def _cut_alarms(test: TestSet, training: Rows) -> Iterator[str]:
    """Compares the lengths of the references with the sources, and with the training text."""
    empty = sum(
        not reference.strip() and bool(source.strip())
        for source, reference in zip(test.sources, test.references, strict=True)
    )
    if empty:
        yield f"{_name(test)}: {empty:,} references are empty, although their sources are not."
    lengths = [len(line) for line in test.references]
    if len(lengths) < _LEAST_LINES:
        return
    longest = max(lengths)
    if (number := lengths.count(longest)) > max(4, 0.05 * len(lengths)):
        yield (
            f"{_name(test)}: {number:,} references have exactly {longest} characters, the length of the "
            "longest; they look cut."
        )
    if len(training) >= _LEAST_LINES:
        ratios = [
            sum(len(row[1]) for row in rows) / max(sum(len(row[0]) for row in rows), 1)
            for rows in (training, list(zip(test.sources, test.references, strict=True)))
        ]
        change = ratios[1] / max(ratios[0], 1e-9)
        if not 1 / _LENGTH_CHANGE < change < _LENGTH_CHANGE:
            yield (
                f"{_name(test)}: the references have {ratios[1]:.2f} times the length of the sources; "
                f"in the training text it is {ratios[0]:.2f} times."
            )


def _identical_alarms(tests: Sequence[TestSet], outputs: Sequence[Sequence[str]]) -> Iterator[str]:
    """Looks for directions with the same translations of different sources.

    Two kinds of translations do not count: those that equal their reference, because test sets may share
    references, and those that are empty or frequent in their direction, which are another fault.
    """
    pairs = []
    frequent = [collections.Counter(lines) for lines in outputs]
    for number, (test, lines) in enumerate(zip(tests, outputs, strict=True)):
        for other, other_lines in zip(tests[:number], outputs[:number], strict=True):
            rows = [
                (line, other_line)
                for line, other_line, reference, source, other_source in zip(
                    lines, other_lines, test.references, test.sources, other.sources, strict=False
                )
                if line != reference and source != other_source
                if line.strip() and frequent[number][line] <= _MOST_REPEATS
            ]
            same = sum(line == other_line for line, other_line in rows)
            if len(rows) >= _LEAST_LINES and same > 0.5 * len(rows):
                pairs.append((f"{_name(other)} and {_name(test)}", same, len(rows)))
    if pairs:
        names, same, count = pairs[0]
        others = ", ".join(name for name, _, _ in pairs[1:5])
        rest = f" and {len(pairs) - 5} more pairs" if len(pairs) > 5 else ""
        yield (
            f"{names} have the same output in {same:,} of {count:,} lines with different sources"
            + (f"; the same fault in {others}{rest}." if others else ".")
        )
