"""Line-aligned files: line N of one file translates line N of the other."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from gshard_nmt.data.reading.rows import Input, SentencePair, make_pair, score_of
from gshard_nmt.data.reading.text_lines import Lines, even_blocks
from gshard_nmt.errors import UserError

_ROWS = 4096


def read_aligned(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of line-aligned files in blocks. Raises as `read_columns` does.

    Raises:
      UserError: a score is not a number.
    """
    number = 0
    for blocks in read_columns(source, _ROWS):
        columns = [block.content.decode().split("\n")[:-1] for block in blocks]
        if len(columns) == 2:
            scores: Iterator[float | None] = itertools.repeat(None)
        else:
            scores = _scores(source.files[2], columns[2], number)
        yield list(map(make_pair, zip(columns[0], columns[1], scores, strict=False)))
        number += len(columns[0])


def read_columns(source: Input, rows: int) -> Iterator[tuple[Lines, ...]]:
    """Yields the lines of each file in blocks of `rows` rows; the last block may have fewer.

    Raises:
      UserError: the files have different numbers of lines, a line is not UTF-8, or a compressed file is
        damaged.
    """
    streams = [even_blocks(path, rows) for path in source.files]
    number = 0
    for blocks in itertools.zip_longest(*streams, fillvalue=Lines()):
        if len({block.count for block in blocks}) > 1:
            # The files are read to their ends, because the counts help to find the place.
            counts = [
                number + block.count + sum(rest.count for rest in stream)
                for block, stream in zip(blocks, streams, strict=True)
            ]
            raise _unequal(source, counts)
        yield blocks
        number += blocks[0].count


def _scores(path: Path, texts: list[str], number: int) -> Iterator[float | None]:
    """Yields the scores of a block of lines. `number` is the number of lines before them."""
    for line, text in enumerate(texts, number + 1):
        yield score_of(text, f"{path}, line {line}")


def _unequal(source: Input, counts: list[int]) -> UserError:
    first, *others = source.files
    number, path = next((n, p) for n, p in zip(counts[1:], others, strict=True) if n != counts[0])
    return UserError(
        f"the two files of {first.parent.name} have different lengths: {first} has {counts[0]} lines, "
        f"{path} has {number}. Line N of one file must translate line N of the other."
    )
