"""Reads the rows of an input, whatever its format."""

import collections
import itertools
from collections.abc import Callable, Iterator, Mapping

from gshard_nmt.data.reading.gettext import read_gettext
from gshard_nmt.data.reading.jsonl import read_jsonl
from gshard_nmt.data.reading.rows import Input, SentencePair, encodable, make_pair, score_of
from gshard_nmt.data.reading.text_lines import count_lines, lines
from gshard_nmt.data.reading.tmx import read_tmx
from gshard_nmt.data.reading.tsv import read_tsv
from gshard_nmt.errors import UserError

_ROWS = 4096
_ESCAPING = ("jsonl", "gettext")
"""The formats whose text may have characters that UTF-8 cannot encode."""


def read_input(source: Input) -> Iterator[SentencePair]:
    """Yields the rows of an input. Memory does not grow with the size of its files."""
    return itertools.chain.from_iterable(read_blocks(source))


def read_blocks(
    source: Input, repaired: collections.Counter[str] | None = None
) -> Iterator[list[SentencePair]]:
    """Yields the rows of an input in lists, some of which may be empty. Raises as `read_input` does.

    `repaired` counts the rows that `encodable` has changed, by the name of the input.
    """
    for block in _READERS[source.format](source):
        try:
            if source.format in _ESCAPING:
                "".join([text for row in block for text in row[:2]]).encode()
            yield block
        except UnicodeEncodeError:
            rows = [SentencePair(encodable(a), encodable(b), score) for a, b, score in block]
            if repaired is not None:
                repaired[source.name] += sum(a != b for a, b in zip(block, rows, strict=True))
            yield rows


def count_rows(source: Input) -> int:
    """Returns the number of rows of an input. Line-aligned files are not decoded for this."""
    if source.format == "aligned":
        counts = {count_lines(path) for path in source.files}
        if len(counts) == 1:
            return counts.pop()
    return sum(len(block) for block in read_blocks(source))


def read_aligned(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of line-aligned files: line N of one file translates line N of the other."""
    rows = itertools.zip_longest(*map(lines, source.files))
    number = 0
    while block := list(itertools.islice(rows, _ROWS)):
        if None in block[-1]:
            raise _uneven(source)
        first, second, *others = zip(*block, strict=True)
        scores: Iterator[float | None] = itertools.repeat(None)
        if others:
            places = (f"{source.files[2]}, line {number + n}" for n in itertools.count(1))
            scores = map(score_of, others[0], places)
        yield list(map(make_pair, zip(first, second, scores, strict=False)))
        number += len(block)


def _uneven(source: Input) -> UserError:
    counts = [count_lines(path) for path in source.files]
    n = next(n for n, count in enumerate(counts) if count != counts[0])
    first, other = source.files[0], source.files[n]
    return UserError(
        f"the two files of {first.parent.name} have different lengths: {first} has {counts[0]} lines, "
        f"{other} has {counts[n]}. Line N of one file must translate line N of the other."
    )


_READERS: Mapping[str, Callable[[Input], Iterator[list[SentencePair]]]] = {
    "aligned": read_aligned,
    "tsv": read_tsv,
    "jsonl": read_jsonl,
    "tmx": read_tmx,
    "gettext": read_gettext,
}
