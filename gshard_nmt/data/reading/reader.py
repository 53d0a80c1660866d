"""Reads the rows of an input, whatever its format."""

import collections
import itertools
from collections.abc import Callable, Iterator, Mapping

from gshard_nmt.data.reading.aligned import read_aligned
from gshard_nmt.data.reading.gettext import read_gettext
from gshard_nmt.data.reading.jsonl import read_jsonl
from gshard_nmt.data.reading.rows import Input, SentencePair, encodable
from gshard_nmt.data.reading.text_lines import count_lines
from gshard_nmt.data.reading.tmx import read_tmx
from gshard_nmt.data.reading.tsv import read_tsv

_READERS: Mapping[str, Callable[[Input], Iterator[list[SentencePair]]]] = {
    "aligned": read_aligned,
    "tsv": read_tsv,
    "jsonl": read_jsonl,
    "tmx": read_tmx,
    "gettext": read_gettext,
}

_ESCAPING = ("jsonl", "gettext")
"""The formats whose text may have characters that UTF-8 cannot encode."""


def read_input(source: Input) -> Iterator[SentencePair]:
    """Yields the rows of an input. Memory does not grow with the size of its files.

    Raises:
      UserError: a file is damaged, is not UTF-8 or does not have its format. The message names the file
        and the line.
    """
    return itertools.chain.from_iterable(read_blocks(source))


def read_blocks(
    source: Input, repaired: collections.Counter[str] | None = None
) -> Iterator[list[SentencePair]]:
    """Yields the rows of an input in lists, some of which may be empty. Raises as `read_input` does.

    Args:
      source: the input.
      repaired: counts the rows that `encodable` has changed, by the name of the input.
    """
    blocks = _READERS[source.format](source)
    if source.format not in _ESCAPING:
        yield from blocks
        return
    for block in blocks:
        try:
            "".join([text for row in block for text in row[:2]]).encode()
            yield block
        except UnicodeEncodeError:
            rows = [SentencePair(encodable(a), encodable(b), score) for a, b, score in block]
            if repaired is not None:
                repaired[source.name] += sum(a != b for a, b in zip(block, rows, strict=True))
            yield rows


def count_rows(source: Input) -> int:
    """Returns the number of rows of an input. Raises as `read_input` does.

    Line-aligned files are not decoded for this.
    """
    if source.format == "aligned":
        counts = {count_lines(path) for path in source.files}
        if len(counts) == 1:
            return counts.pop()
    return sum(len(block) for block in read_blocks(source))
