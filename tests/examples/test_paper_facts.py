"""The numbers in the words of docs/paper_tables.md are those of its tables."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "paper_tables.md"

# What a number may be in words that are written by hand: part of a name or of a reference, a mesh, or the
# machine or depth that a sentence is about.
NAMES = (
    r"\{\w+\}",
    "`[^`]*`",
    r"et al\. \d{4}",
    r"(?:[Ff]igure|[Tt]able|[Ss]ection|appendix)s? [\w.]*\w",
    r"\w*[A-Za-z_]\w*",
    r"\d+ x \d+",
    r"\b(?:8|16|32|128|512|2,048)\b",
    r"\b(?:12|36)(?= layers|-layer)",
)


@pytest.fixture
def scripts(monkeypatch):
    """The modules of the page, which import each other from their own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import paper_examples
    import paper_facts
    import paper_merge
    import paper_notes

    words = [*paper_notes.REASONS.values(), *paper_notes.KNOWN]
    for module in (paper_notes, paper_examples):
        texts = [value for name, value in vars(module).items() if name.isupper()]
        words += [text for text in texts if isinstance(text, str)]
    return paper_facts, paper_merge, words


def test_no_number_is_written_by_hand(scripts):
    *_, words = scripts
    for text in words:
        left = re.sub("|".join(NAMES), "", text)
        assert not re.search(r"\d", left), f"compute the numbers of: {left}"


def test_the_numbers_follow_the_tables(scripts):
    facts, merge, _ = scripts
    page = PAGE.read_text()
    before = facts.facts(merge.sections(page))
    assert before["step_growth"] == "1.12"
    changed = page.replace("| 2.2% | 0.916 |", "| 2.2% | 1.634 |")
    assert facts.facts(merge.sections(changed))["step_growth"] == "2.00"


def test_every_row_out_of_the_bounds_is_a_contradiction_and_has_a_reason(scripts):
    facts, merge, _ = scripts
    sections = merge.sections(PAGE.read_text())
    listed = [key for (key, *_) in sections["Contradictions"].rows]
    expected = [
        f"{prefix}{name}"
        for figure, prefix in (("step s", ""), ("TFLOP", "TFLOP of "))
        for name, printed, compiled in facts.ratios(sections, figure)
        if not 0.8 <= compiled / printed <= 1.25
    ]
    assert listed == expected
    assert {"GSPMD table 4: 2 x 16 x 8, 16", "GSPMD table 8: 4x16, 256, 8"} <= set(listed)
    words = "\n".join(sections["Contradictions"].after)
    assert all(name.removeprefix("TFLOP of ") in words for name in listed)
