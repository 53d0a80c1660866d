"""Tables of Markdown, and the sections of docs/performance.md that programs write."""

import argparse
import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from translators import environment

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
FEWEST_ROUNDS = 5
"""A median of fewer rounds is not written to the page."""


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


def add_flag(parser: argparse.ArgumentParser) -> None:
    """Adds `--page` to the command line of a benchmark."""
    parser.add_argument(
        "--page",
        choices=("auto", "always", "never"),
        default="auto",
        help="when to write docs/performance.md; auto: if the table is whole and the machine is quiet",
    )


def publish(
    section: str, text: str, arguments: argparse.Namespace, busy: str, is_whole: bool = True
) -> bool:
    """Prints a table with its command and machine, and writes it to docs/performance.md if it fits there.

    Args:
      section: the name of the section.
      text: the table.
      arguments: the command line, with `page` and `rounds`.
      busy: what `environment.busy` returned before the start.
      is_whole: whether the table has everything that the page shows.

    Returns:
      Whether the page has it now.
    """
    command = shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    today = datetime.datetime.now(tz=datetime.UTC)
    about = f"`{command}`, {today:%Y-%m-%d}. {environment.machine()}. {busy}".strip()
    text = f"{text}\n{about}\n"
    print(text)
    if reason := _refusal(arguments, busy, is_whole):
        print(f"docs/{PAGE.name} is unchanged, because {reason}.")
        return False
    write(section, text)
    return True


def _refusal(arguments: argparse.Namespace, busy: str, is_whole: bool) -> str:
    """Returns why a table does not belong on the page, or "" if it does."""
    if arguments.page != "auto":
        return "" if arguments.page == "always" else "of --page never"
    if busy:
        return "the machine was busy"
    if arguments.rounds < FEWEST_ROUNDS:
        return f"there were fewer than {FEWEST_ROUNDS} rounds"
    if not is_whole:
        return "it does not measure exactly what the page shows"
    return ""
