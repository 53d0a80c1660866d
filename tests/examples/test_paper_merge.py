"""docs/paper_tables.md keeps the rows whose figures are not in the folder of the results."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.paper_merge import merge, sections

PAGE = Path(__file__).parents[2] / "docs" / "paper_tables.md"


def page(title: str, rows: list[str], words: str = "Words.", header: str = "model | GiB") -> str:
    """Returns a page of one section with one table."""
    lines = [f"| {row} |" for row in rows]
    return "\n".join(
        [
            "# Head",
            "",
            f"## {title}",
            "",
            words,
            "",
            f"| {header} |",
            "|---|---:|",
            *lines,
            "",
            "End.",
            "",
        ]
    )


def rows_of(text: str, title: str) -> list[str]:
    """Returns the rows of a section's table without their outer bars."""
    return [line.strip("| ") for line in sections(text)[title].rows.values()]


def test_sections_give_the_page_back():
    text = PAGE.read_text()
    assert "\n".join(section.text for section in sections(text).values()) == text


def test_a_row_without_new_figures_stays_and_a_compiled_one_changes():
    old = page("T", ["a | 1.0", "b | 2.0", "c | not compiled"])
    new = page("T", ["a | 9.0", "b | not compiled", "c | not compiled"], words="New words.")
    merged = merge(new, old, {"a"})
    assert rows_of(merged, "T") == ["a | 9.0", "b | 2.0", "c | not compiled"]
    assert "New words." in merged


def test_other_columns_are_refused_if_rows_would_be_lost():
    old, new = page("T", ["a | 1.0", "b | 2.0"]), page("T", ["b | 9.0"], header="model | GB")
    with pytest.raises(ValueError, match=r"'T' .* other columns .* 1 rows cannot be kept"):
        merge(new, old, {"b"})


def test_a_page_written_without_figures_is_the_page_as_it_was(tmp_path):
    """So the words of the scripts are those of the page."""
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    script = PAGE.parents[1] / "scripts" / "paper_tables.py"
    flags = ["--write", "--folder", tmp_path / "empty", "--page", copy]
    subprocess.run([sys.executable, script, *flags], check=True, cwd=PAGE.parents[1])
    assert copy.read_text() == PAGE.read_text()


def test_no_two_rows_of_the_page_have_the_same_key():
    text = PAGE.read_text()
    for title, section in sections(text).items():
        body = text.split(f"## {title}\n")[1].split("\n## ")[0] if title else ""
        lines = [line for line in body.split("\n") if line.startswith("|")]
        assert len(section.rows) == max(0, len(lines) - 2), title
