"""Tables, .tsv and .csv: two columns of text, and perhaps columns of scores.

un chat <tab> a cat
1.07 <tab> un chat <tab> a cat             a score before the text, as in CCMatrix
fr <tab> en <tab> domain <tab> score       a line of names, which may name more columns

A .csv file has commas, semicolons or tabs between the columns, and a field may be in quotes. In a .tsv
file quotes are text.
"""

import csv
import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gshard_nmt.data.language_codes import nearest
from gshard_nmt.data.reading.rows import Input, SentencePair, make_pair, note, one_line, score_of
from gshard_nmt.data.reading.text_lines import (
    LONGEST_LINE,
    line_blocks,
    lines,
    without_compression,
)
from gshard_nmt.errors import UserError

SAMPLE = 100
"""The number of lines that decide which columns have scores."""

_SOURCES = frozenset(("source", "src", "source_sentence", "src_text", "source_text"))
_TARGETS = frozenset(("target", "tgt", "trg", "target_sentence", "tgt_text", "target_text"))
_QUOTED = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')
_ROWS = 4096
_Table = tuple[Sequence[int], list[list[str]]]  # numbers of lines, rows


@dataclasses.dataclass(frozen=True)
class Columns:
    """The meaning of the columns of a table.

    Attributes:
      count: the number of columns.
      source, target: index of the column of each side.
      score: index of the column of scores; None if there is none.
      has_names: whether the first line has the names of the columns.
    """

    count: int
    source: int
    target: int
    score: int | None = None
    has_names: bool = False


def read_tsv(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of a .tsv or .csv file in blocks. Blank lines are skipped.

    Raises:
      UserError: the file has not two columns of text, a line has another number of columns, a score is
        not a number, a line is not UTF-8, or a compressed file is damaged.
    """
    (path,) = source.files
    is_csv = _is_csv(source)
    stream = _csv_tables(path) if is_csv else _tables(path)
    first: _Table = ([], [])
    for block in stream:
        numbers, table = _without_blanks(*block)
        first = ([*first[0], *numbers], first[1] + table)
        if len(first[0]) >= SAMPLE:
            break
    if not first[0]:
        return
    _check_sample(source, first[1][:SAMPLE])
    columns = find_columns(source, first[1][:SAMPLE])
    if columns.has_names:
        first = (first[0][1:], first[1][1:])
    for numbers, table in itertools.chain([first], stream):
        if set(map(len, table)) - {columns.count}:
            numbers, table = _without_blanks(numbers, table)
        if set(map(len, table)) - {columns.count}:
            raise _uneven(source, numbers, table, columns.count)
        scores: Iterator[float | None] = itertools.repeat(None)
        if columns.score is not None:
            scores = _scores(source, numbers, table, columns.score)
        sides = [[row[side] for row in table] for side in (columns.source, columns.target)]
        if is_csv:
            sides = [list(map(one_line, side)) for side in sides]
        yield list(map(make_pair, zip(*sides, scores, strict=False)))


def _is_csv(source: Input) -> bool:
    return without_compression(source.files[0].name).endswith(".csv")


def _tables(path: Path) -> Iterator[_Table]:
    number = 1
    for block in line_blocks(path):
        yield range(number, number + len(block)), [line.split("\t") for line in block]
        number += len(block)


def _csv_tables(path: Path) -> Iterator[_Table]:
    """Yields the rows of a .csv file. A field in quotes may have several lines."""
    stream = (f"{line}\n" for line in lines(path))
    first = next(stream, "")
    csv.field_size_limit(LONGEST_LINE)
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(itertools.chain([first], stream), delimiter=delimiter, strict=True)
    rows = ((reader.line_num, row) for row in reader)
    try:
        while block := list(itertools.islice(rows, _ROWS)):
            yield [number for number, _ in block], [row for _, row in block]
    except csv.Error as error:
        raise UserError(
            f"{path}, line {reader.line_num} is not CSV ({error}); put a field with quotes or line "
            "breaks in double quotes, and double the quotes inside it."
        ) from None


def _without_blanks(numbers: Sequence[int], table: list[list[str]]) -> _Table:
    kept = [i for i, row in enumerate(table) if len(row) > 1 or "".join(row).strip()]
    return [numbers[i] for i in kept], [table[i] for i in kept]


def _check_sample(source: Input, sample: Sequence[Sequence[str]]) -> None:
    path = source.files[0]
    quoted = (field for row in sample for field in row if _QUOTED.fullmatch(field))
    if not _is_csv(source) and (field := next(quoted, "")):
        note(
            f"{path} has fields such as {field[:60]}, and quotes are text in a .tsv file; if they are "
            f"not, name it {without_compression(path.name)[:-4]}.csv"
        )


def find_columns(source: Input, table: Sequence[Sequence[str]]) -> Columns:
    """Returns the meaning of the columns.

    If the first line names both languages, or a source and a target, these two columns are the text, and
    the column "score" is the score. Otherwise a file with more than two columns must have two that are
    text. A column is a score if it has a number in every one of these first lines.

    Raises:
      UserError: it is not clear which two columns are the text.
    """
    count = len(table[0])
    if named := _named(source, table):
        return named
    numbers = [i for i in range(count) if count > 2 and _is_number_column(table, i)]
    texts = [i for i in range(count) if i not in numbers]
    if len(texts) != 2:
        what = f"{count} columns" if count < 2 else f"{len(texts)} columns of text"
        separator = "separator" if _is_csv(source) else "tab"
        raise UserError(
            f"{source.files[0]}, line 1 has {what}; a table must have two columns of text with one "
            f"{separator} between them, and all other columns must be numbers (scores). Name the "
            f"columns of the text in the first line, as {source.source} and {source.target}, or remove "
            "the others."
        )
    if source.swapped:
        texts.reverse()
    return Columns(count, texts[0], texts[1], numbers[0] if numbers else None)


def _named(source: Input, table: Sequence[Sequence[str]]) -> Columns | None:
    """Returns the columns that the first line names; None if it does not name the two texts."""
    names = [name.strip() for name in table[0]]
    tags = [nearest(tag, names) for tag in (source.source, source.target)]
    places = [[i for i, name in enumerate(names) if name == tag] for tag in tags]
    if not all(places):
        words = (_TARGETS, _SOURCES) if source.swapped else (_SOURCES, _TARGETS)
        places = [[i for i, name in enumerate(names) if name.lower() in side] for side in words]
    if [len(place) for place in places] != [1, 1] or places[0] == places[1]:
        return None
    sides = [place[0] for place in places]
    others = [i for i in range(len(names)) if i not in sides]
    scores = [i for i in others if names[i].lower() == "score"]
    return Columns(len(names), sides[0], sides[1], scores[0] if scores else None, has_names=True)


def _is_number_column(table: Sequence[Sequence[str]], place: int) -> bool:
    try:
        return all(float(row[place]) is not None for row in table if place < len(row))
    except ValueError:
        return False


def _scores(
    source: Input, numbers: Sequence[int], table: Sequence[Sequence[str]], place: int
) -> Iterator[float | None]:
    for line, row in zip(numbers, table, strict=True):
        yield score_of(row[place], f"{source.files[0]}, line {line}")


def _uneven(
    source: Input, numbers: Sequence[int], table: Sequence[Sequence[str]], count: int
) -> UserError:
    rows = zip(numbers, table, strict=True)
    line, row = next((n, row) for n, row in rows if len(row) != count)
    remedy = "Mend the line, or remove it"
    if _is_csv(source):
        between = "the same separators as the first line"
    else:
        between = (
            "one tab between them" if count == 2 else "tabs between them, as in the first line"
        )
        if any(field.startswith('"') for field in row):
            name = without_compression(source.files[0].name)[:-4]
            remedy += f"; if its fields are in quotes, name the file {name}.csv"
    return UserError(
        f"{source.files[0]}, line {line} has {len(row)} column{'s' * (len(row) != 1)}; each line must "
        f"have {'two' if count == 2 else count}, with {between}. {remedy}."
    )
