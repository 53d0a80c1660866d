"""Reads text files of any size in blocks, plain or compressed, with file and line in every error.

Only a newline character ends a line, and a carriage return before it is left out; inside a line it is a
space. Python's `str.splitlines` also splits at characters such as U+2028, which occur inside sentences of
crawled text.
"""

import bz2
import itertools
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from gshard_nmt import paths
from gshard_nmt.errors import UserError

COMPRESSIONS = (".gz", ".zst", ".xz", ".bz2")
"""The endings of compressed files."""

LONGEST_LINE = 1 << 24
"""The most bytes of a line. A longer line is not a sentence, and memory must stay flat."""

_BLOCK = 1 << 18
_PIECE, _PIECE_OF_ZST = 1 << 14, 1 << 8
"""A small piece of a compressed file keeps the memory small. One of .zst may be 32,000 times as large."""


class _DamagedError(UserError):
    """A compressed file is cut off or has wrong bytes."""


def without_compression(name: str) -> str:
    return next((name.removesuffix(e) for e in COMPRESSIONS if name.endswith(e)), name)


def lines(path: Path) -> Iterator[str]:
    """Yields the lines of a file without their line ends. Raises as `line_blocks` does."""
    return itertools.chain.from_iterable(line_blocks(path))


def line_blocks(path: Path) -> Iterator[list[str]]:
    """Yields the lines of a file in lists of several hundred lines, without their line ends.

    A byte order mark at the start is left out. Raises as `blocks` does, and UserError for a line that is
    too long or not UTF-8.
    """
    number, rest = 0, b""
    for block in blocks(path):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            split = _split(path, whole, number)
            number += len(split)
            yield split
        if len(rest) > LONGEST_LINE:
            raise UserError(
                f"{path}, line {number + 1} has more than {LONGEST_LINE >> 20} MiB; a line holds one "
                "sentence. Check that the file is text with one sentence in each line."
            )
    if rest:
        yield _split(path, rest, number)


def _split(path: Path, content: bytes, number: int) -> list[str]:
    """Returns some lines of a file; `number` is the number of lines before them."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = number + content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}, line {line} is not UTF-8 ({error.reason}); convert the file to UTF-8."
        ) from None
    if not number:
        text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = f"{text}\n".replace("\r\n", "\n").replace("\r", " ")[:-1]
    return text.split("\n")


def blocks(path: Path) -> Iterator[bytes]:
    """Yields the content of a file, decompressed, in blocks.

    Raises:
      UserError: a compressed file is damaged. The message says how many lines are before the damage.
      OSError: the file cannot be read.
    """
    number = 0
    try:
        # The libraries of an object store have exceptions of their own.
        with paths.store_errors(path), path.open("rb") as file:
            for block in _decompressed(file, path.suffix):
                number += block.count(b"\n")
                yield block
    except _DamagedError as error:
        raise UserError(
            f"{path} is damaged after line {number}: {str(error).rstrip('.')}. Copy or compress the file "
            "again."
        ) from error


def _decompressed(file: IO[bytes], ending: str) -> Iterator[bytes]:
    """Yields the content of a file, which may have several compressed streams, one after the other.

    The file classes for .bz2 and .xz end without an error if a later stream is damaged, and that for .zst
    if the file is cut off. So we look at the end of each stream ourselves.
    """
    if ending not in COMPRESSIONS:
        yield from iter(lambda: file.read(_BLOCK), b"")
        return
    stream, is_inside = _decompressor(ending), True
    while piece := file.read(_PIECE_OF_ZST if ending == ".zst" else _PIECE):
        # Zeros may fill up a file after a stream; no stream begins with one.
        while piece := (piece if is_inside else piece.lstrip(b"\0")):
            is_inside = True
            try:
                yield from _outputs(stream, piece)
            except MemoryError:
                raise
            except Exception as error:  # each library has its own; zstandard's is no OSError
                raise _DamagedError(str(error)) from error
            piece = b""
            if stream.eof:
                piece, stream, is_inside = stream.unused_data, _decompressor(ending), False
    if not file.tell():
        raise _DamagedError("the file is empty")
    if is_inside:
        raise _DamagedError("the file ends inside a compressed stream")


def _decompressor(ending: str) -> Any:
    if ending == ".zst":
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj()
    if ending == ".gz":
        return zlib.decompressobj(zlib.MAX_WBITS | 16)
    return lzma.LZMADecompressor() if ending == ".xz" else bz2.BZ2Decompressor()


def _outputs(stream: Any, piece: bytes) -> Iterator[bytes]:
    """Yields the content of a piece. That of .bz2 and .xz can be a million times as large."""
    if not isinstance(stream, bz2.BZ2Decompressor | lzma.LZMADecompressor):
        yield from filter(None, [stream.decompress(piece)])
        return
    while block := stream.decompress(piece, _BLOCK):
        yield block
        piece = b""
        if stream.eof or stream.needs_input:
            return
