"""The stages that clean: filters for each chunk, and duplicates of a language pair in all its chunks.

held_out    dev and test text of a language pair -> hashes
clean       a chunk                              -> the rows that stay, their signatures
duplicates  a bucket of signatures               -> rows that occur before, of all chunks
drop        a chunk                              -> its rows that are duplicates
"""

import collections
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.cleaning import duplicates, overlap, registry, report
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.cleaning.registry import clean
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Chunk, Part
from gshard_nmt.data.preparation.plan import Choice, LanguageText, Plan, SplitText, folder_of
from gshard_nmt.data.preparation.work import Finished, Unit, WorkFolder

ROWS = "rows.zst"
SIGNATURES = "signatures"
DUPLICATES = "duplicates"
HELD_OUT = "held_out.npy"
_DROPPED = "dropped.npy"
_SAMPLES = "samples.json"
_EMPTY = "empty"
"""The name of the filter that drops a pair with an empty side."""


@dataclasses.dataclass(frozen=True)
class CleanText:
    """What cleaning left of the text of a split.

    `removed` and `edited` count the pairs that each filter dropped and changed. `folders` have samples of
    them.
    """

    text: SplitText
    pairs: int
    removed: Mapping[str, int]
    edited: Mapping[str, int]
    parts: tuple[Part, ...]
    folders: tuple[Path, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def samples(self) -> report.Samples:
        together: report.Samples = {}
        for folder in self.folders:
            new = json.loads((folder / _SAMPLES).read_bytes())
            # One after the other, so that no more than two sets of samples are in memory.
            together = report.merge([together, new]) if new else together
        return together


CleanTexts = dict[tuple[str, str], CleanText]
"""Clean text by `folder_of` the pair and the split."""


def clean_all(work: WorkFolder, plan: Plan, every: Sequence[LanguageText]) -> CleanTexts:
    """Cleans the training text of languages. Their dev text loses its empty rows."""
    settings = plan.cleaning
    filters = registry.filters(settings)
    keeps_all = not (settings.duplicates or filters or plan.config.maximum_pairs)
    held_out: list[Path | None] = [None] * len(every)
    if "overlap" in filters:
        held_out = [*_hold_out(work, plan, every)]
    units: list[Unit] = []
    owners: list[tuple[SplitText, int]] = []
    clean_texts: CleanTexts = {}
    for languages, hashes in zip(every, held_out, strict=True):
        dev = [text for text in languages.held_out if text.split == "dev"]
        for text in (*languages.train, *dev):
            names = (text.pair.source, text.pair.target, text.pair.subset)
            task = Filtering(Path(), 0, Choice(), *names)
            if text.split == "train":
                if keeps_all:
                    parts = tuple(Part(*chunk) for known in text.texts for chunk in known.chunks())
                    clean_text = CleanText(text, text.total, {}, {}, parts, ())
                    clean_texts[folder_of(text.pair), "train"] = clean_text
                    continue
                identity = plan.cleaning_identity
                choice = plan.choice(text)
                task = Filtering(Path(), 0, choice, *names, settings, identity, hashes)
            first, chunks_of_text = 0, [chunk for known in text.texts for chunk in known.chunks()]
            for place, (file, rows) in enumerate(chunks_of_text):
                own_task = dataclasses.replace(task, file=file, first=first)
                units.append(Unit(f"{text.name}/{place}", own_task, rows))
                first += rows
            owners.append((text, len(chunks_of_text)))
    done = iter(zip(units, work.run("clean", "cleaning, pairs", filter_rows, units), strict=True))
    for text, count in owners:
        own = [next(done) for _ in range(count)]
        clean_texts[folder_of(text.pair), text.split] = CleanText(
            text,
            sum(outcome.result["pairs"] for _, outcome in own),
            _sum(outcome.result["removed"] for _, outcome in own),
            _sum(outcome.result["edited"] for _, outcome in own),
            tuple(part_of(unit.task, outcome) for unit, outcome in own),
            tuple(outcome.folder for _, outcome in own),
        )
    if settings.duplicates:
        clean_texts |= _without_duplicates(work, settings.duplicates, every, clean_texts)
    return clean_texts


def _hold_out(work: WorkFolder, plan: Plan, every: Sequence[LanguageText]) -> Iterator[Path]:
    """Yields the file of hashes of dev and test text of each language pair."""
    units = []
    for languages in every:
        texts = [known for text in languages.held_out for known in text.texts]
        files = tuple(file for known in texts for file, _ in known.chunks())
        first = languages.train[0].pair
        task = HoldingOut(files, first.source, first.target, plan.cleaning.overlap_words)
        size = sum(text.total for text in languages.held_out)
        units.append(Unit(folder_of(first), task, size))
    for outcome in work.run("held_out", "reading dev and test text, pairs", hold_out, units):
        yield outcome.folder / HELD_OUT


def _without_duplicates(
    work: WorkFolder, kinds: tuple[str, ...], every: Sequence[LanguageText], clean: CleanTexts
) -> CleanTexts:
    finding: list[Unit] = []
    counts = []
    for languages in every:
        texts = [clean[name, "train"] for name in languages.names]
        files = tuple(f / SIGNATURES for text in texts for f in text.folders)
        total = sum(text.total for text in languages.train)
        buckets = duplicates.buckets_for(total) if files else 0
        size = sum(text.rows for text in texts) // max(buckets, 1)
        name = languages.names[0]
        finding += [Unit(f"{name}/{n}", Finding(files, n, buckets), size) for n in range(buckets)]
        counts.append(buckets)
    about = "finding duplicates, pairs"
    found = iter(work.run("duplicates", about, find_duplicates, finding))
    dropping: list[Unit] = []
    for languages, count in zip(every, counts, strict=True):
        files = tuple(next(found).folder / DUPLICATES for _ in range(count))
        parts = [part for name in languages.names for part in clean[name, "train"].parts]
        for number, part in enumerate(parts):
            task = Dropping(part.file, part.rows, number, files, kinds)
            dropping.append(Unit(f"{languages.names[-1]}/{number}", task, part.rows))
    dropped = iter(work.run("drop", "dropping duplicates, pairs", drop, dropping))
    result = {}
    for name in (name for languages in every for name in languages.names):
        text = clean[name, "train"]
        own = [next(dropped) for _ in text.parts]
        parts = [part_without(part, outcome) for part, outcome in zip(text.parts, own, strict=True)]
        result[name, "train"] = dataclasses.replace(
            text,
            removed=_sum([text.removed, *(outcome.result["removed"] for outcome in own)]),
            parts=tuple(parts),
            folders=(*text.folders, *(outcome.folder for outcome in own)),
        )
    return result


@dataclasses.dataclass(frozen=True)
class HoldingOut:
    """Dev and test text in the order (source, target)."""

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
    duplicates.save(folder / HELD_OUT, hashes)
    return {"hashes": len(hashes)}


@dataclasses.dataclass(frozen=True)
class Filtering:
    """The task of a unit of `filter_rows`: a chunk, and the number of rows of the text before it.

    Without settings, for dev text, empty rows alone are dropped. `identity` identifies the filters, and
    `held_out` has the hashes of dev and test text, if there is any.
    """

    file: Path
    first: int
    choice: Choice
    source: str
    target: str
    subset: str
    settings: Cleaning | None = None
    identity: Mapping[str, Any] | None = None
    held_out: Path | None = None


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
            duplicates.write_signatures(folder / SIGNATURES, values)
    if stay is not whole:
        chunks.write(folder / ROWS, chunks.content_of(stay))
    _write_samples(folder, dropped)
    return {"pairs": len(chunk), "rows": len(stay), "is_whole": stay is whole, **counts}


def part_of(task: Filtering, outcome: Finished) -> Part:
    is_whole = outcome.result["is_whole"]
    return Part(task.file if is_whole else outcome.folder / ROWS, outcome.result["rows"])


@dataclasses.dataclass(frozen=True)
class Finding:
    """The signatures of all chunks, and a bucket."""

    files: tuple[Path, ...]
    bucket: int
    buckets: int


def find_duplicates(task: Finding, folder: Path) -> Mapping[str, Any]:
    repeated = duplicates.duplicates_of_bucket(task.files, task.bucket, task.buckets)
    duplicates.save(folder / DUPLICATES, repeated)
    return {}


@dataclasses.dataclass(frozen=True)
class Dropping:
    """A clean chunk, the number of its rows, and its number among all chunks.

    `files` are what `find_duplicates` wrote for each bucket.
    """

    file: Path
    rows: int
    number: int
    files: tuple[Path, ...]
    kinds: tuple[str, ...]


def drop(task: Dropping, folder: Path) -> Mapping[str, Any]:
    """Writes the places of the rows of a chunk that are duplicates, and samples of them."""
    places = duplicates.read_duplicates(task.files, task.number, len(task.kinds))
    removed, dropped = {}, {}
    if any(map(len, places)):
        rows = chunks.read(task.file).rows()
        for kind, some in zip(task.kinds, places, strict=True):
            if len(some):
                name = f"duplicate {kind}"
                removed[name] = len(some)
                dropped[name] = report.choose(name, [rows[i] for i in some.tolist()])
    every = np.sort(np.concatenate([*places, np.zeros(0, np.uint32)])).astype(np.int64)
    duplicates.save(folder / _DROPPED, every)
    _write_samples(folder, dropped)
    return {"rows": task.rows - len(every), "removed": removed}


def part_without(part: Part, outcome: Finished) -> Part:
    rows = outcome.result["rows"]
    return Part(part.file, rows, outcome.folder / _DROPPED if rows < part.rows else None)


def _write_samples(folder: Path, dropped: report.Samples) -> None:
    content = json.dumps(dropped, ensure_ascii=True)
    (folder / _SAMPLES).write_text(content, encoding="utf-8")


def _with_text(chunk: Chunk) -> np.ndarray:
    """Returns the places of the rows of which both sides have text, int64[n]."""
    rows = enumerate(zip(chunk.sources, chunk.targets, strict=True))
    places = [i for i, (a, b) in rows if a and b and not (a.isspace() or b.isspace())]
    return np.array(places, np.int64)


def _sum(counts: Iterator[Mapping[str, int]] | Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for count in counts:
        total.update(count)
    return dict(total)
