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
from collections.abc import Iterator, Sequence
from pathlib import Path

from gshard_nmt.data.language_codes import nearest
from gshard_nmt.data.reading.rows import Input, SentencePair, one_line, score_of
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
_ROWS = 4096
_Table = list[tuple[int, list[str]]]  # number of the line, fields


@dataclasses.dataclass(frozen=True)
class Columns:
    """The meaning of the columns of a table: their number, and the index of each side and of the score.

    If `has_names`, the first line has the names of the columns.
    """

    count: int
    source: int
    target: int
    score: int | None = None
    has_names: bool = False


def read_tsv(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of a .tsv or .csv file in blocks. Blank lines are skipped."""
    (path,) = source.files
    stream = _csv_tables(path) if _is_csv(source) else _tables(path)
    tables = (
        [row for row in table if len(row[1]) > 1 or "".join(row[1]).strip()] for table in stream
    )
    first: _Table = []
    for table in tables:
        first += table
        if len(first) >= SAMPLE:
            break
    if not first:
        return
    columns = find_columns(source, [row for _, row in first[:SAMPLE]])
    for table in itertools.chain([first[columns.has_names :]], tables):
        rows = []
        for line, row in table:
            if len(row) != columns.count:
                raise _uneven(source, line, row, columns.count)
            score = None
            if columns.score is not None:
                score = score_of(row[columns.score], f"{path}, line {line}")
            sides = one_line(row[columns.source]), one_line(row[columns.target])
            rows.append(SentencePair(*sides, score))
        yield rows


def _is_csv(source: Input) -> bool:
    return without_compression(source.files[0].name).endswith(".csv")


def _tables(path: Path) -> Iterator[_Table]:
    number = 1
    for block in line_blocks(path):
        yield [(line, text.split("\t")) for line, text in enumerate(block, number)]
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
            yield block
    except csv.Error as error:
        raise UserError(
            f"{path}, line {reader.line_num} is not CSV ({error}); put a field with quotes or line "
            "breaks in double quotes, and double the quotes inside it."
        ) from None


def find_columns(source: Input, table: Sequence[Sequence[str]]) -> Columns:
    """Returns the meaning of the columns.

    If the first line names both languages, or a source and a target, these two columns are the text, and
    the column "score" is the score. Otherwise a file with more than two columns must have two that are
    text. A column is a score if it has a number in every one of these first lines.
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


def _uneven(source: Input, line: int, row: Sequence[str], count: int) -> UserError:
    remedy = "Mend the line, or remove it"
    between = "the same separators as the first line"
    if not _is_csv(source):
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
