"""The checks of whole test sets. tests/evaluation/report/test_faults.py seeds each fault."""

import random

from gshard_nmt.evaluation.report import alignment
from gshard_nmt.evaluation.texts import translations

WORDS = [a * n + b + c for a in "bdgkm" for b in "aeiou" for c in "lnrst" for n in (1, 2, 4)]


def rows_of(seed: int, count: int = 60) -> list[tuple[str, str]]:
    """Returns sentences and their translation into capital letters and another alphabet."""
    rng = random.Random(seed)
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(count)]
    return [(line.translate(str.maketrans("aeioudgk", "êèîôûwxq")), line) for line in sentences]


def alarms_of(rows, outputs=None, training=()) -> list[str]:
    sources, references = (list(side) for side in zip(*rows, strict=True))
    test = translations.TestSet("fr", "fr", "en", 9, sources, references)
    lines = outputs or references
    return list(alignment.alarms([test], [lines], {("fr", "en"): training}))


def test_a_clean_test_set_of_any_size_raises_no_alarm():
    for count in (1, 2, 5, 19, 20, 30, 60, 150):
        assert alarms_of(rows_of(count, count), training=rows_of(0)) == []


def test_constant_lengths_say_nothing_about_shifts():
    (alarm,) = alarms_of([("ab cd", "ef gh")] * 33)
    assert alarm.endswith(
        "33 references have exactly 5 characters, the length of the longest; they look cut."
    )


def test_the_outputs_tell_the_shift_of_the_last_lines():
    rows = rows_of(1, 100)
    sources, references = (list(side) for side in zip(*rows, strict=True))
    shifted = [*references[:75], *references[76:], references[0]]
    (alarm,) = alarms_of(list(zip(sources, shifted, strict=True)), references)
    assert alarm == (
        "fr-en: the references look shifted by -1 against the sources in lines 76 to 100."
    )


def test_useless_outputs_do_not_hide_shifted_references():
    sources, references = (list(side) for side in zip(*rows_of(2), strict=True))
    rows = list(zip(sources, [*references[2:], *references[:2]], strict=True))
    (alarm,) = alarms_of(rows, ["nothing"] * 60)
    assert "the references look shifted by -2" in alarm


def test_test_sets_may_share_references_and_perfect_outputs():
    rows = rows_of(3)
    targets = [row[1] for row in rows]
    tests = [
        translations.TestSet(tag, tag, "en", 9, [tag + row[0] for row in rows], targets)
        for tag in ("fr", "de")
    ]
    references = tests[0].references
    assert list(alignment.alarms(tests, [references, references], {})) == []
    wrong = [line[:-1] for line in references]
    (alarm,) = alignment.alarms(tests, [wrong, wrong], {})
    assert alarm == (
        "fr-en and de-en have the same output in 60 of 60 lines with different sources."
    )


def test_empty_and_frequent_outputs_are_another_fault():
    rows = rows_of(4)
    tests = [
        translations.TestSet(tag, tag, "en", 9, [tag + row[0] for row in rows], ["x"] * 60)
        for tag in ("fr", "de")
    ]
    lines = ["", "always"] * 30
    assert not [a for a in alignment.alarms(tests, [lines, lines], {}) if "same output" in a]


def test_many_directions_with_the_same_outputs_give_one_alarm():
    rows = rows_of(5)
    tags = [f"x{n}" for n in range(5)]
    targets = [row[1] for row in rows]
    tests = [
        translations.TestSet(tag, tag, "en", 9, [tag + row[0] for row in rows], targets)
        for tag in tags
    ]
    (alarm,) = alignment.alarms(tests, [[line + "!" for line in tests[0].references]] * 5, {})
    assert alarm.endswith("x1-en and x2-en, x0-en and x3-en, x1-en and x3-en and 5 more pairs.")
