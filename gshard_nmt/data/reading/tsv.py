"""Tables, .tsv and .csv: two columns of text, and perhaps columns of scores.

un chat <tab> a cat
1.07 <tab> un chat <tab> a cat             a score before the text, as in CCMatrix
fr <tab> en <tab> domain <tab> score       a line of names, which may name more columns

A .csv file has commas between the columns, and a field may be in quotes. In a .tsv file quotes are text.
"""

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gshard_nmt.data.language_codes import nearest
from gshard_nmt.data.reading.rows import Input, SentencePair, one_line, score_of
from gshard_nmt.data.reading.text_lines import LONGEST_LINE, line_blocks, lines, without_compression
from gshard_nmt.errors import UserError

SAMPLE = 100
"""The number of lines that decide which columns have scores."""

_SOURCES = frozenset(("source", "src", "source_sentence", "src_text", "source_text"))
_TARGETS = frozenset(("target", "tgt", "trg", "target_sentence", "tgt_text", "target_text"))
_ROWS = 4096
_Table = list[tuple[int, list[str]]]  # number of the line, fields


class Columns(NamedTuple):
    """The index of the column of each side and of the score."""

    source: int
    target: int
    score: int | None = None
    has_names: bool = False


def read_tsv(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of a .tsv or .csv file in blocks. Blank lines are skipped."""
    (path,) = source.files
    is_csv = without_compression(path.name).endswith(".csv")
    stream = _csv_tables(path) if is_csv else _tables(path)
    tables = ([row for row in table if "".join(row[1]).strip()] for table in stream)
    first: _Table = []
    while len(first) < SAMPLE and (table := next(tables, None)) is not None:
        first += table
    if not first:
        return
    columns = find_columns(source, [row for _, row in first[:SAMPLE]])
    count = len(first[0][1])
    for table in itertools.chain([first[columns.has_names :]], tables):
        rows = []
        for line, row in table:
            if len(row) != count:
                raise UserError(
                    f"{path}, line {line} has {len(row)} column{'s' * (len(row) != 1)}; each line must "
                    f"have {count}, as the first line. Mend the line, or remove it. The columns of a "
                    ".tsv file stand between tabs, those of a .csv file between commas or in quotes."
                )
            score = None
            if columns.score is not None:
                score = score_of(row[columns.score], f"{path}, line {line}")
            sides = one_line(row[columns.source]), one_line(row[columns.target])
            rows.append(SentencePair(*sides, score))
        yield rows


def _tables(path: Path) -> Iterator[_Table]:
    number = 1
    for block in line_blocks(path):
        yield [(line, text.split("\t")) for line, text in enumerate(block, number)]
        number += len(block)


def _csv_tables(path: Path) -> Iterator[_Table]:
    """Yields the rows of a .csv file. A field in quotes may have several lines."""
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader((f"{line}\n" for line in lines(path)), strict=True)
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
    names = [name.strip() for name in table[0]]
    tags = [nearest(tag, names) for tag in (source.source, source.target)]
    places = [[i for i, name in enumerate(names) if name == tag] for tag in tags]
    if not all(places):
        words = (_TARGETS, _SOURCES) if source.swapped else (_SOURCES, _TARGETS)
        places = [[i for i, name in enumerate(names) if name.lower() in side] for side in words]
    if [len(place) for place in places] == [1, 1] and places[0] != places[1]:
        scores = [i for i, name in enumerate(names) if name.lower() == "score"]
        return Columns(places[0][0], places[1][0], next(iter(scores), None), has_names=True)
    count = len(names)
    numbers = [i for i in range(count) if count > 2 and _is_number_column(table, i)]
    texts = [i for i in range(count) if i not in numbers]
    if len(texts) != 2:
        what = f"{count} column" if count < 2 else f"{len(texts)} columns of text"
        raise UserError(
            f"{source.files[0]}, line 1 has {what}; a table must have two columns of text, with tabs in "
            "a .tsv file or commas in a .csv file, and all other columns must be numbers (scores). Name "
            f"the columns of the text in the first line, as {source.source} and {source.target}, or "
            "remove the others."
        )
    if source.swapped:
        texts.reverse()
    return Columns(texts[0], texts[1], numbers[0] if numbers else None)


def _is_number_column(table: Sequence[Sequence[str]], place: int) -> bool:
    try:
        return all(float(row[place]) is not None for row in table if place < len(row))
    except ValueError:
        return False
