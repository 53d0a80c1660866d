"""The output of a benchmark: tables of Markdown, sections of docs/performance.md, and records."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import environment, records
from harness.records import Figure
from harness.rounds import Limit

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
FEWEST_ROUNDS = 3
"""A median of fewer rounds is not written to the page."""


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    head, *body = (
        [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        for row in rows
    )
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *body])


def replace(page: str, section: str, text: str) -> str:
    start, end = f"<!-- begin {section} -->\n", f"<!-- end {section} -->\n"
    if page.count(start) != 1 or page.count(end) != 1:
        raise ValueError(f"{PAGE.name} must have one {start.strip()} and one {end.strip()}")
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(end)
    return before + start + "\n" + text.strip() + "\n\n" + end + after


def write(section: str, text: str) -> None:
    PAGE.write_text(replace(PAGE.read_text(encoding="utf-8"), section, text), encoding="utf-8")


def add_flags(parser: argparse.ArgumentParser, rounds: int, has_limit: bool = True) -> None:
    parser.add_argument(
        "--rounds", type=int, default=rounds, help=f"turns of each system; default {rounds}"
    )
    if has_limit:
        parser.add_argument(
            "--minutes",
            type=float,
            default=float("inf"),
            help="make fewer rounds if they would take longer; default: no limit",
        )
    add_page_flag(parser)


def add_page_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--page",
        choices=("auto", "always", "never"),
        default="auto",
        help="when to write docs/performance.md and benchmarks/results.json; auto: if the table is whole "
        "and the machine is quiet",
    )


def limit_of(arguments: argparse.Namespace) -> Limit:
    return Limit(arguments.rounds, arguments.minutes * 60)


@dataclasses.dataclass(frozen=True)
class Section:
    """What a benchmark has measured for one section of the page.

    Attributes:
      name: the name of the section, which is also the part of its records.
      text: the table.
      figures: its figures, for benchmarks/results.json.
      rounds: the rounds that were made.
      is_whole: whether the table has everything that the page shows.
      versions: the versions of the libraries of other processes.
    """

    name: str
    text: str
    figures: Sequence[Figure]
    rounds: int
    is_whole: bool = True
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


def publish(section: Section, when: str, busy: str) -> None:
    command = shlex.join([f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    how = records.circumstances(command, environment.machine(), busy, section.versions)
    # benchmarks/results.json has the versions of the libraries, and the processor's instructions.
    machine = how.machine.partition(";")[0]
    about = f"`{command}`, {how.date}, commit {how.commit}. {machine}. {busy}".strip()
    text = f"{section.text.strip()}\n\n{about}\n"
    print(text)
    if reason := _refusal(section, when, busy):
        print(f"docs/{PAGE.name} is unchanged, because {reason}.")
        return
    write(section.name, text)
    records.write(section.name, section.figures, how)


def _refusal(section: Section, when: str, busy: str) -> str:
    if when != "auto":
        return "" if when == "always" else "of --page never"
    if busy:
        return "the machine was busy"
    if section.rounds < FEWEST_ROUNDS:
        return f"there were fewer than {FEWEST_ROUNDS} rounds"
    if not section.is_whole:
        return "it does not measure exactly what the page shows"
    return ""
