"""The stages that clean: filters for each chunk, and duplicates of a language pair in all its chunks.

held_out    dev and test text of a language pair -> hashes
clean       a chunk                              -> the rows that stay, their signatures
duplicates  a bucket of signatures               -> rows that occur before, of all chunks
drop        a chunk                              -> its rows that are duplicates
"""

import dataclasses
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.batching.permutation import permute
from gshard_nmt.data.cleaning import duplicates, overlap, registry, report
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.cleaning.registry import clean
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Chunk, Part

ROWS = "rows.zst"
SIGNATURES = "signatures"
DUPLICATES = "duplicates"
HELD_OUT = "held_out.npy"
_DROPPED = "dropped.npy"
_SAMPLES = "samples.json"
_EMPTY = "empty"
"""The name of the filter that drops a pair with an empty side."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A choice of rows, evenly at random and without repetition, that needs no memory.

    Attributes:
      limit: the number of rows to choose; 0 chooses all.
      total: the number of rows of the text.
      seed: decides the choice.
    """

    limit: int
    total: int
    seed: int

    def places(self, first: int, count: int) -> np.ndarray:
        """Returns which of the rows from `first` to `first + count` are chosen.

        Returns:
          int64[n], the places of chosen rows after `first`, sorted.
        """
        if not self.limit or self.limit >= self.total:
            return np.arange(count)
        rows = np.arange(first, first + count)
        key = np.random.SeedSequence(self.seed).generate_state(1, np.uint64)
        return np.flatnonzero(permute(rows, self.total, key) < self.limit)


@dataclasses.dataclass(frozen=True)
class HoldingOut:
    """The task of a unit of `hold_out`: dev and test text in the order (source, target)."""

    files: tuple[Path, ...]
    source: str
    target: str
    words: int


def hold_out(task: HoldingOut, folder: Path) -> Mapping[str, Any]:
    """Writes the hashes of dev and test text; see `cleaning/overlap.py`."""
    parts = []
    for file in task.files:
        rows = chunks.read(file).rows()
        parts.append(overlap.held_out(rows, task.source, task.target, task.words))
    hashes = overlap.merge(parts)
    _save(folder / HELD_OUT, hashes)
    return {"hashes": len(hashes)}


@dataclasses.dataclass(frozen=True)
class Filtering:
    """The task of a unit of `filter_rows`.

    Attributes:
      file: the file of the chunk.
      first: the number of rows of the text before this chunk.
      choice: the choice of rows.
      source, target, subset: what the text is; see `About`.
      settings: the settings of cleaning. None drops empty rows alone, for dev text.
      held_out: the file of hashes of dev and test text; None if there is none.
      buckets: the number of buckets of the signatures.
    """

    file: Path
    first: int
    choice: Choice
    source: str
    target: str
    subset: str
    settings: Cleaning | None = None
    held_out: Path | None = None
    buckets: int = 1


def filter_rows(task: Filtering, folder: Path) -> Mapping[str, Any]:
    """Writes the rows of a chunk that stay, their signatures, and samples of the other rows.

    Returns:
      `pairs`, the number of rows that were chosen; `rows`, the number of those that stay; `removed` and
      `edited`, the numbers that each filter dropped and changed. If `is_whole`, the chunk stays as it is,
      so that its rows are not written again.
    """
    whole = chunks.read(task.file)
    chunk = whole.take(task.choice.places(task.first, len(whole)))
    settings = task.settings
    counts: dict[str, Any] = {"removed": {}, "edited": {}}
    dropped: report.Samples = {}
    stay = chunk
    if settings is None:
        stay = chunk.take(_with_text(chunk))
        if len(stay) < len(chunk):
            counts["removed"] = {_EMPTY: len(chunk) - len(stay)}
    elif settings.duplicates or registry.filters(settings):
        hashes = np.load(task.held_out) if task.held_out else np.zeros(0, np.uint64)
        about = About(task.source, task.target, task.subset, settings, hashes)
        cleaned = clean(chunk.rows(), about)
        stay = Chunk.of(cleaned.rows) if cleaned.edited else chunk.take(cleaned.indices)
        counts = {"removed": dict(cleaned.removed), "edited": dict(cleaned.edited)}
        dropped = cleaned.samples
        if settings.duplicates:
            values = duplicates.signatures(cleaned.rows, settings.duplicates)
            duplicates.write_signatures(folder / SIGNATURES, values, task.buckets)
    if stay is not whole:
        chunks.write(folder / ROWS, chunks.content_of(stay))
    _write_samples(folder, dropped)
    return {"pairs": len(chunk), "rows": len(stay), "is_whole": stay is whole, **counts}


@dataclasses.dataclass(frozen=True)
class Finding:
    """The task of a unit of `find_duplicates`: the signatures of all chunks, and a bucket."""

    files: tuple[Path, ...]
    bucket: int


def find_duplicates(task: Finding, folder: Path) -> Mapping[str, Any]:
    """Writes the rows of all chunks that are duplicates by the signatures of a bucket."""
    repeated = duplicates.duplicates_of_bucket(task.files, task.bucket)
    duplicates.write_duplicates(folder / DUPLICATES, repeated)
    return {}


@dataclasses.dataclass(frozen=True)
class Dropping:
    """The task of a unit of `drop`.

    Attributes:
      file: the clean chunk.
      rows: the number of its rows.
      number: the number of the chunk among the chunks of `Finding`.
      files: what `find_duplicates` wrote for each bucket.
      kinds: the kinds of duplicates.
    """

    file: Path
    rows: int
    number: int
    files: tuple[Path, ...]
    kinds: tuple[str, ...]


def drop(task: Dropping, folder: Path) -> Mapping[str, Any]:
    """Writes the places of the rows of a chunk that are duplicates, and samples of them.

    Returns:
      `rows`, the number of rows that stay, and `removed`, the number of duplicates of each kind.
    """
    places = duplicates.read_duplicates(task.files, task.number)
    removed, dropped = {}, {}
    if any(map(len, places)):
        rows = chunks.read(task.file).rows()
        for kind, some in zip(task.kinds, places, strict=True):
            if len(some):
                name = duplicates.filter_name(kind)
                removed[name] = len(some)
                dropped[name] = report.choose(name, [rows[i] for i in some.tolist()])
    every = np.sort(np.concatenate([*places, np.zeros(0, np.uint32)])).astype(np.int64)
    _save(folder / _DROPPED, every)
    _write_samples(folder, dropped)
    return {"rows": task.rows - len(every), "removed": removed}


def part_of(task: Filtering, folder: Path, result: Mapping[str, Any]) -> Part:
    """Returns the clean chunk of a finished unit of `filter_rows`."""
    return Part(task.file if result["is_whole"] else folder / ROWS, result["rows"])


def part_without(part: Part, folder: Path, rows: int) -> Part:
    """Returns a clean chunk without the rows that a finished unit of `drop` says."""
    return Part(part.file, rows, folder / _DROPPED if rows < part.rows else None)


def samples_of(folders: Iterable[Path]) -> report.Samples:
    """Returns the samples of finished units of `filter_rows` and `drop`, chosen together."""
    together: report.Samples = {}
    for folder in folders:
        new = json.loads((folder / _SAMPLES).read_bytes())
        # One after the other, so that no more than two sets of samples are in memory.
        together = report.merge([together, new]) if new else together
    return together


def _save(file: Path, array: np.ndarray) -> None:
    """Writes an array. If the disk is full, `np.save` into a file may lose its end without an error."""
    content = io.BytesIO()
    np.save(content, array)
    file.write_bytes(content.getvalue())


def _write_samples(folder: Path, dropped: report.Samples) -> None:
    content = json.dumps(dropped, ensure_ascii=True)
    (folder / _SAMPLES).write_text(content, encoding="utf-8")


def _with_text(chunk: Chunk) -> np.ndarray:
    """Returns the places of the rows of which both sides have text, int64[n]."""
    rows = enumerate(zip(chunk.sources, chunk.targets, strict=True))
    places = [i for i, (a, b) in rows if a and b and not (a.isspace() or b.isspace())]
    return np.array(places, np.int64)
