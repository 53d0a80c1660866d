"""The first stage: the rows of each input of a corpus, in chunks; and a cache of what was read.

A second run must not read a large text again to see that nothing has changed. So the digest of an
input's rows is kept in the user's cache, with the sizes and times of its files.
"""

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files, paths
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Part
from gshard_nmt.data.preparation.work import Unit, WorkFolder, key_of
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair, Input, read_blocks
from gshard_nmt.errors import UserError

_VERSION = 2
_FINE_SECONDS, _COARSE_SECONDS = 0.05, 3.0
"""A file may change again within this time without a new time stamp."""

Stamps = list[list[Any]]
"""The path, the size in bytes and the times of change of each file of an input."""


@dataclasses.dataclass(frozen=True)
class Text:
    """What is known of the rows of an input.

    The digest identifies the rows, whatever their format. `rows` has the number in each chunk. The folder
    of the chunks is None if the text was read in an earlier run.
    """

    digest: str
    rows: tuple[int, ...]
    folder: Path | None = None

    @property
    def total(self) -> int:
        return sum(self.rows)

    @property
    def parts(self) -> list[Part]:
        assert self.folder is not None, "the text was not read"
        return [Part(self.folder / _chunk_name(n), rows) for n, rows in enumerate(self.rows)]


def _chunk_name(number: int) -> str:
    return f"{number:05}.zst"


def name_of(item: Input) -> str:
    """Returns a name that no other input of any corpus has."""
    return f"{item.subset}:{item.name}" if item.subset else item.name


def read_all(work: WorkFolder, items: Sequence[Input]) -> dict[str, Text]:
    """Returns the text of each input by its name. It is read again if a file has another size or time."""
    before = [stamps(item) for item in items]
    units = [
        Unit(
            name_of(item),
            functools.partial(read, item=item, before=own),
            sum(size for _, size, *_ in own),
        )
        for item, own in zip(items, before, strict=True)
    ]
    # The inputs may be read in two parts.
    done = work.run("read", "reading, bytes", units, removes_others=False)
    texts = {}
    for item, own, outcome in zip(items, before, done, strict=True):
        result = outcome.result
        text = Text(result["digest"], tuple(result["rows"]), outcome.folder)
        remember(item, text, own)
        texts[name_of(item)] = text
    return texts


def read(folder: Path, item: Input, before: Stamps) -> Mapping[str, Any]:
    """Writes the rows of an input in chunks; returns `digest` and `rows`, see `Text`.

    Raises:
      UserError: a file is damaged, or it is not as `before`, because another program writes it.
    """
    digest, rows = _digest(item, folder)
    for old, new in zip(before, stamps(item), strict=True):
        if old != new:
            raise UserError(
                f"{new[0]} has changed while it was read. Wait until the program that writes it has "
                "finished, and give the same command again."
            )
    return {"digest": digest, "rows": rows}


def digest_of(item: Input) -> str:
    if text := known_text(item):
        return text.digest
    before = stamps(item)
    digest, rows = _digest(item)
    remember(item, Text(digest, tuple(rows)), before)
    return digest


def _digest(item: Input, folder: Path | None = None) -> tuple[str, list[int]]:
    """Returns the digest and the rows of each chunk; writes the chunks if there is a folder."""
    rows: list[int] = []
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks.split(read_blocks(item)):
        content = chunks.content_of(chunk)
        digest.update(hashlib.blake2b(content).digest())
        if folder is not None:
            chunks.write(folder / _chunk_name(len(rows)), content)
        rows.append(len(chunk))
    return digest.hexdigest(), rows


def fingerprint(pairs: Sequence[CorpusPair]) -> str:
    """Returns 16 hexadecimal digits that identify the text of these pairs, in any order and format."""
    return fingerprint_of(
        [(pair, s, digest_of(item)) for pair in pairs for s in SPLITS for item in pair.inputs(s)]
    )


def fingerprint_of(digests: Sequence[tuple[CorpusPair, str, str]]) -> str:
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


def remember(item: Input, text: Text, before: Stamps) -> None:
    """Writes what is known of an input into the cache, if its `stamps` are those `before` the reading."""
    place = _cache_file(item)
    now = stamps(item)
    if place is None or before != now:
        return
    for *_, changed in now:
        # Some file systems know whole seconds alone.
        seconds = _COARSE_SECONDS if changed % 1_000_000_000 == 0 else _FINE_SECONDS
        if time.time() - changed / 1e9 < seconds:
            return
    entry = {"version": _VERSION, "stamps": now, "digest": text.digest, "rows": text.rows}
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write(place, json.dumps(entry))
    except OSError:
        return


def _cache_file(item: Input) -> Path | None:
    try:
        folder = paths.user_cache() / "texts"
    except UserError:
        return None
    names = [str(paths.absolute(path)) for path in item.files]
    facts = (item.format, item.source, item.target, item.swapped)
    return folder / key_of(names, facts)[:32]


def stamps(item: Input) -> Stamps:
    """Returns the stamps of the files. Times are nanoseconds.

    `cp -p` and `rsync -t` can set the last one back, but not the one before.
    """
    result: Stamps = []
    for path in item.files:
        stat: Any = path.stat()
        if hasattr(stat, "st_size"):
            facts = [stat.st_size, stat.st_ctime_ns, stat.st_mtime_ns]
        else:  # a path in a bucket
            facts = [int(stat.length), int(stat.mtime * 1e9)]
        result.append([str(paths.absolute(path)), *facts])
    return result
