"""Tables of Markdown, and the sections of docs/performance.md that programs write."""

from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as an aligned table. The first row is the head, the first column is text."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    head, *body = (
        [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    )
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *body])


def replace(page: str, section: str, text: str) -> str:
    """Returns a page with new text between the two markers of a section.

    Raises:
      ValueError: the page does not have both markers, once each.
    """
    start, end = f"<!-- begin {section} -->\n", f"<!-- end {section} -->\n"
    if page.count(start) != 1 or page.count(end) != 1:
        raise ValueError(f"{PAGE.name} must have one {start.strip()} and one {end.strip()}")
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(end)
    return before + start + "\n" + text.strip() + "\n\n" + end + after


def write(section: str, text: str) -> None:
    """Writes a section of docs/performance.md."""
    PAGE.write_text(replace(PAGE.read_text(encoding="utf-8"), section, text), encoding="utf-8")
