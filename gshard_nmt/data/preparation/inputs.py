"""The first stage: the rows of each input of a corpus, in chunks; and a cache of what was read.

A second run must not read a large text again to see that nothing has changed. So the digest of an
input's rows is kept in the user's cache, with the sizes and times of its files.
"""

import collections
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files, paths
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.work import Finished, Unit, key_of
from gshard_nmt.data.sets.corpus import CorpusPair, Input
from gshard_nmt.errors import UserError

_VERSION = 2
_SPLITS = ("train", "dev", "test")
_FINE_SECONDS, _COARSE_SECONDS = 0.05, 3.0
"""A file may change again within this time without a new time stamp."""


@dataclasses.dataclass(frozen=True)
class Text:
    """What is known of the rows of an input.

    Attributes:
      digest: identifies the rows, whatever the format of their files.
      rows: the number of rows in each chunk.
      folder: the folder of the chunks; None if they are not there, because the text was read in an
        earlier run.
      repaired: the number of rows with text that cannot be encoded; see `rows.encodable`.
    """

    digest: str
    rows: tuple[int, ...]
    folder: Path | None = None
    repaired: int = 0

    @property
    def total(self) -> int:
        """The number of rows."""
        return sum(self.rows)

    def chunk(self, number: int) -> Path:
        """Returns the file of a chunk."""
        assert self.folder is not None, "the text was not read"
        return self.folder / chunk_name(number)


def chunk_name(number: int) -> str:
    """Returns the name of the file of a chunk."""
    return f"{number:05}.zst"


def unit_of(item: Input) -> Unit:
    """Returns the unit that reads an input. It is done again if a file has another size or time."""
    changes = [(path.name, _stamp(path)) for path in item.files]
    key = key_of(_VERSION, item.source, item.target, item.format, item.swapped, changes)
    return Unit(name_of(item), key, item, sum(stamp[0] for _, stamp in changes))


def name_of(item: Input) -> str:
    """Returns a name that no other input of any corpus has."""
    return f"{item.subset}:{item.name}" if item.subset else item.name


def read(item: Input, folder: Path) -> Mapping[str, Any]:
    """Reads an input and writes its rows in chunks into a folder.

    Returns:
      `digest`, `rows` and `repaired`, see `Text`.

    Raises:
      UserError: a file is damaged, or another program writes it.
    """
    before = stamps(item)
    rows: list[int] = []
    repaired: collections.Counter[str] = collections.Counter()

    def write() -> Iterator[bytes]:
        for count, content in chunks.contents(item, repaired):
            chunks.write(folder / chunk_name(len(rows)), content)
            rows.append(count)
            yield content

    digest = chunks.digest_of(write())
    for old, new in zip(before, stamps(item), strict=True):
        if old != new:
            raise UserError(
                f"{new[0]} has changed while it was read. Wait until the program that writes it has "
                "finished, and give the same command again."
            )
    return {"digest": digest, "rows": rows, "repaired": repaired.total()}


def text_of(unit: Finished) -> Text:
    """Returns what a finished unit of `read` knows."""
    result = unit.result
    return Text(result["digest"], tuple(result["rows"]), unit.folder, result["repaired"])


def digest_of(item: Input) -> str:
    """Returns the digest of the rows of an input. Reads it if it is not in the cache."""
    text = known_text(item)
    if text is not None:
        return text.digest
    before = stamps(item)
    rows: list[int] = []

    def contents() -> Iterator[bytes]:
        for count, content in chunks.contents(item):
            rows.append(count)
            yield content

    text = Text(chunks.digest_of(contents()), tuple(rows))
    remember(item, text, before)
    return text.digest


def fingerprint(pairs: Sequence[CorpusPair]) -> str:
    """Returns 16 hexadecimal digits that identify the text of these pairs.

    The order of the pairs, the formats of the files and their compression do not matter.
    """
    digests = []
    for pair in pairs:
        for split in _SPLITS:
            digests += [(pair, split, digest_of(item)) for item in pair.inputs(split)]
    return fingerprint_of(digests)


def fingerprint_of(digests: Sequence[tuple[CorpusPair, str, str]]) -> str:
    """Returns the fingerprint of inputs: their pair, their split and the digest of their rows."""
    return key_of(sorted((p.subset, p.source, p.target, split, d) for p, split, d in digests))[:16]


def known_text(item: Input) -> Text | None:
    """Returns what the cache knows of an input; None if it is not there, or a file has changed."""
    place = _cache_file(item)
    try:
        entry = json.loads(place.read_bytes()) if place else None
        if entry and entry["version"] == _VERSION and entry["stamps"] == stamps(item):
            return Text(str(entry["digest"]), tuple(map(int, entry["rows"])))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def remember(item: Input, text: Text, before: Sequence[Any]) -> None:
    """Writes what is known of an input into the cache. Does nothing if that cannot be.

    Args:
      item: the input.
      text: its text.
      before: `stamps` of the input, from before it was read.
    """
    place = _cache_file(item)
    now = stamps(item)
    if place is None or list(before) != now:
        return
    if any(time.time() - seconds / 1e9 < _window(seconds) for *_, seconds in now):
        return
    entry = {"version": _VERSION, "stamps": now, "digest": text.digest, "rows": text.rows}
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write(place, json.dumps(entry))
    except OSError:
        return


def _window(nanoseconds: int) -> float:
    """Returns the seconds after a change in which a second change may have the same time stamp."""
    return _COARSE_SECONDS if nanoseconds % 1_000_000_000 == 0 else _FINE_SECONDS


def _cache_file(item: Input) -> Path | None:
    try:
        folder = paths.user_cache() / "texts"
    except UserError:
        return None
    names = [str(paths.absolute(path)) for path in item.files]
    facts = (item.format, item.source, item.target, item.swapped)
    return folder / key_of(names, facts)[:32]


def stamps(item: Input) -> list[Any]:
    """Returns the path, the size and the time of change of each file of an input."""
    return [[str(paths.absolute(path)), *_stamp(path)] for path in item.files]


def _stamp(path: Path) -> tuple[int, ...]:
    """Returns the size of a file in bytes and its times of change in nanoseconds.

    `cp -p` and `rsync -t` can set the last time back, but not the one before.
    """
    stat: Any = path.stat()
    if hasattr(stat, "st_size"):
        return stat.st_size, stat.st_ctime_ns, stat.st_mtime_ns
    # The stat of a path in a bucket.
    return int(stat.length), int(stat.mtime * 1e9)
