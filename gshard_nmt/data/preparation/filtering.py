"""The stages that clean: filters for each chunk, and duplicates of a language pair in all its chunks.

held_out    dev and test text of a language pair -> hashes
clean       a chunk                              -> the rows that stay, their signatures
duplicates  a bucket of signatures               -> rows that occur before, of all chunks
drop        a clean chunk                        -> the rows that are no duplicates
"""

import collections
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.cleaning import duplicates, overlap, registry, report
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Chunk, Part
from gshard_nmt.data.preparation.inputs import SplitText, Texts, folder_of
from gshard_nmt.data.preparation.work import Finished, Unit, WorkFolder
from gshard_nmt.data.sets.corpus import CorpusPair

ROWS = "rows.zst"
SIGNATURES = "signatures"
DUPLICATES = "duplicates"
HELD_OUT = "held_out.npy"
_SAMPLES = "samples.json"
_CLEANED = ("train", "dev")
_EMPTY = "empty"
"""The name of the filter that drops a pair with an empty side."""


@dataclasses.dataclass(frozen=True)
class CleanText:
    """What cleaning left of the text of a split.

    `removed` and `edited` count the pairs that each filter dropped and changed. `folders` have samples of
    them.
    """

    text: SplitText
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


def clean_all(
    work: WorkFolder, settings: Cleaning, pairs: Sequence[CorpusPair], texts: Texts
) -> CleanTexts:
    """Cleans the training text of all pairs. Their dev text loses its empty rows."""
    # The same two languages have the same order in all corpora; see `directions.joined`.
    every: dict[tuple[str, str], list[CorpusPair]] = {}
    for pair in pairs:
        every.setdefault((pair.source, pair.target), []).append(pair)
    held_out: dict[tuple[str, str], Path] = {}
    if "overlap" in registry.filters(settings):
        held_out = _hold_out(work, settings, every, texts)
    identity = registry.identity(settings)
    splits = []
    units: list[Unit] = []
    for languages, own in every.items():
        for text in (SplitText.of(pair, split, texts) for split in _CLEANED for pair in own):
            names = (*languages, text.pair.subset)
            call, version = functools.partial(filter_rows, names=names), None
            if text.split == "train":
                held = held_out.get(languages)
                call, version = functools.partial(call, settings=settings, held_out=held), identity
            for number, part in enumerate(text.parts):
                own_call = functools.partial(call, part=part)
                units.append(Unit(f"{text.name}/{number}", own_call, part.rows, version))
            splits.append(text)
    done = iter(work.run("clean", "cleaning, pairs", units))
    clean: CleanTexts = {}
    for text in splits:
        outcomes = [*itertools.islice(done, len(text.parts))]
        clean[folder_of(text.pair), text.split] = CleanText(
            text,
            _sum(outcome.result["removed"] for outcome in outcomes),
            _sum(outcome.result["edited"] for outcome in outcomes),
            tuple(map(part_of, text.parts, outcomes)),
            tuple(outcome.folder for outcome in outcomes),
        )
    if settings.duplicates:
        groups = [[folder_of(pair) for pair in own] for own in every.values()]
        clean |= _without_duplicates(work, settings.duplicates, groups, clean)
    return clean


def _hold_out(
    work: WorkFolder,
    settings: Cleaning,
    every: Mapping[tuple[str, str], Sequence[CorpusPair]],
    texts: Texts,
) -> dict[tuple[str, str], Path]:
    """Returns the file of hashes of dev and test text of each two languages."""
    units = []
    for (source, target), own in every.items():
        splits = [SplitText.of(pair, split, texts) for split in ("dev", "test") for pair in own]
        call = functools.partial(
            hold_out,
            files=[part.file for text in splits for part in text.parts],
            source=source,
            target=target,
            words=settings.overlap_words,
        )
        units.append(Unit(folder_of(own[0]), call, sum(text.total for text in splits)))
    done = work.run("held_out", "reading dev and test text, pairs", units)
    return {key: outcome.folder / HELD_OUT for key, outcome in zip(every, done, strict=True)}


def _without_duplicates(
    work: WorkFolder, kinds: Sequence[str], every: Sequence[Sequence[str]], clean: CleanTexts
) -> CleanTexts:
    """Drops the duplicates among the texts of each two languages, which are `every` with their names."""
    finding: list[Unit] = []
    counts = []
    for names in every:
        texts = [clean[name, "train"] for name in names]
        files = [folder / SIGNATURES for text in texts for folder in text.folders]
        buckets = duplicates.buckets_for(sum(text.text.total for text in texts)) if files else 0
        size = sum(text.rows for text in texts) // max(buckets, 1)
        for number in range(buckets):
            call = functools.partial(find_duplicates, files=files, bucket=number, buckets=buckets)
            finding.append(Unit(f"{names[0]}/{number}", call, size))
        counts.append(buckets)
    found = iter(work.run("duplicates", "finding duplicates, pairs", finding))
    dropping: list[Unit] = []
    for names, count in zip(every, counts, strict=True):
        files = [outcome.folder / DUPLICATES for outcome in itertools.islice(found, count)]
        parts = [part for name in names for part in clean[name, "train"].parts]
        for number, part in enumerate(parts):
            call = functools.partial(drop, part=part, number=number, files=files, kinds=kinds)
            dropping.append(Unit(f"{names[-1]}/{number}", call, part.rows))
    dropped = iter(work.run("drop", "dropping duplicates, pairs", dropping))
    result = {}
    for name in itertools.chain.from_iterable(every):
        text = clean[name, "train"]
        own = [*itertools.islice(dropped, len(text.parts))]
        result[name, "train"] = dataclasses.replace(
            text,
            removed=_sum([text.removed, *(outcome.result["removed"] for outcome in own)]),
            parts=tuple(map(part_of, text.parts, own)),
            folders=(*text.folders, *(outcome.folder for outcome in own)),
        )
    return result


def hold_out(
    folder: Path, files: Sequence[Path], source: str, target: str, words: int
) -> Mapping[str, Any]:
    """Writes the hashes of dev and test text; see `cleaning/overlap.py`."""
    parts = [overlap.held_out(chunks.read(f).rows(), source, target, words) for f in files]
    hashes = overlap.merge(parts)
    duplicates.save(folder / HELD_OUT, hashes)
    return {"hashes": len(hashes)}


def filter_rows(
    folder: Path,
    part: Part,
    names: tuple[str, str, str],
    settings: Cleaning | None = None,
    held_out: Path | None = None,
) -> Mapping[str, Any]:
    """Writes the rows of a chunk that stay, their signatures, and samples of the other rows.

    `names` are the languages and the subset. Without settings, for dev text, empty rows alone are
    dropped. `held_out` has the hashes of dev and test text, if there is any.

    Returns:
      `rows`, the number of rows that stay; `removed` and `edited`, the numbers that each filter dropped
      and changed. If `is_whole`, the chunk stays as it is, so that its rows are not written again.
    """
    stay = chunk = chunks.read(part.file)
    removed: Mapping[str, int] = {}
    edited: Mapping[str, int] = {}
    dropped: report.Samples = {}
    if settings is None:
        stay = chunk.take(_with_text(chunk))
        if len(stay) < len(chunk):
            removed = {_EMPTY: len(chunk) - len(stay)}
    elif settings.duplicates or registry.filters(settings):
        hashes = np.load(held_out) if held_out else np.zeros(0, np.uint64)
        cleaned = registry.clean(chunk.rows(), About(*names, settings, hashes))
        stay = Chunk.of(cleaned.rows) if cleaned.edited else chunk.take(cleaned.indices)
        removed, edited, dropped = cleaned.removed, cleaned.edited, cleaned.samples
        if settings.duplicates:
            values = duplicates.signatures(cleaned.rows, settings.duplicates)
            duplicates.write_signatures(folder / SIGNATURES, values)
    counts = {"removed": dict(removed), "edited": dict(edited)}
    return {**_write(folder, chunk, stay, dropped), **counts}


def find_duplicates(
    folder: Path, files: Sequence[Path], bucket: int, buckets: int
) -> Mapping[str, Any]:
    """Writes the rows that are duplicates by the signatures of all chunks in one bucket."""
    repeated = duplicates.duplicates_of_bucket(files, bucket, buckets)
    duplicates.save(folder / DUPLICATES, repeated)
    return {}


def drop(
    folder: Path, part: Part, number: int, files: Sequence[Path], kinds: Sequence[str]
) -> Mapping[str, Any]:
    """Writes the rows of a clean chunk that are no duplicates, and samples of the others.

    `number` is that of the chunk among all, and `files` are what `find_duplicates` wrote for each bucket.
    """
    places = duplicates.read_duplicates(files, number, len(kinds))
    chunk = stay = chunks.read(part.file)
    removed, dropped = {}, {}
    for kind, own in zip(kinds, places, strict=True):
        if len(own):
            name = f"duplicate {kind}"
            removed[name] = len(own)
            dropped[name] = report.choose(name, chunk.take(own).rows())
    if removed:
        stay = chunk.take(np.delete(np.arange(len(chunk)), np.concatenate(places)))
    return {"removed": removed, **_write(folder, chunk, stay, dropped)}


def _write(folder: Path, chunk: Chunk, stay: Chunk, dropped: report.Samples) -> Mapping[str, Any]:
    """Writes what stays of a chunk, unless all does, and samples of the rest."""
    if stay is not chunk:
        chunks.write(folder / ROWS, chunks.content_of(stay))
    samples = json.dumps(dropped, ensure_ascii=True)
    (folder / _SAMPLES).write_text(samples, encoding="utf-8")
    return {"rows": len(stay), "is_whole": stay is chunk}


def part_of(part: Part, outcome: Finished) -> Part:
    """Returns what a unit left of a chunk."""
    if outcome.result["is_whole"]:
        return part
    return Part(outcome.folder / ROWS, outcome.result["rows"])


def _with_text(chunk: Chunk) -> np.ndarray:
    """Returns the places of the rows of which both sides have text, int64[n]."""
    rows = enumerate(zip(chunk.sources, chunk.targets, strict=True))
    places = [i for i, (a, b) in rows if a and b and not (a.isspace() or b.isspace())]
    return np.array(places, np.int64)


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: collections.Counter[str] = collections.Counter()
    for count in counts:
        total.update(count)
    return dict(total)
