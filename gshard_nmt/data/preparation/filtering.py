"""The stages that clean: filters for each chunk, and duplicates of a language pair in all its chunks.

held_out    dev and test text of a language pair -> hashes
clean       a chunk                              -> the rows that stay, their signatures
duplicates  a bucket of signatures               -> rows that occur before, of all chunks
drop        a clean chunk                        -> the rows that are no duplicates
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.cleaning import duplicates, filters, overlap, report
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
_OF_DEV = Cleaning(filters=("empty",), duplicates=())


@dataclasses.dataclass(frozen=True)
class CleanText:
    """What cleaning left of the text of a split.

    `removed` counts the pairs that each filter dropped. `folders` have samples of them.
    """

    text: SplitText
    removed: Mapping[str, int]
    parts: tuple[Part, ...]
    folders: tuple[Path, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def to_report(self) -> report.Direction:
        samples: report.Samples = {}
        for folder in self.folders:
            # One after the other, so that no more than two sets of samples are in memory.
            samples = report.merge([samples, json.loads((folder / _SAMPLES).read_bytes())])
        names = (self.text.pair.source, self.text.pair.target, self.text.pair.subset)
        return report.Direction(*names, self.text.total, self.removed, samples)


CleanTexts = dict[tuple[str, str], CleanText]
"""Clean text by `folder_of` the pair and the split."""


def clean_all(
    work: WorkFolder, settings: Cleaning, pairs: Sequence[CorpusPair], texts: Texts
) -> CleanTexts:
    """Cleans the training text of all pairs. Their dev text loses its empty rows."""
    # The same two languages have one order in all corpora, but with "as-named"; see `directions.joined`.
    every: dict[tuple[str, str], list[CorpusPair]] = {}
    for pair in pairs:
        every.setdefault((pair.source, pair.target), []).append(pair)
    held_out: dict[tuple[str, str], Path] = {}
    if "overlap" in filters.filters(settings):
        held_out = _hold_out(work, settings, every, texts)
    identity = filters.identity(settings)
    splits, groups = [], []
    for languages, own in every.items():
        for text in (SplitText.of(pair, split, texts) for split in _CLEANED for pair in own):
            is_train = text.split == "train"
            orders = (languages, languages[::-1]) if is_train else ()
            call = functools.partial(
                filter_rows,
                names=languages,
                settings=settings if is_train else _OF_DEV,
                held_out=[held_out[order] for order in orders if order in held_out],
            )
            version = identity if is_train else None
            splits.append(text)
            units = [
                Unit(f"{text.name}/{n}", functools.partial(call, part=part), part.rows, version)
                for n, part in enumerate(text.parts)
            ]
            groups.append(units)
    clean: CleanTexts = {}
    done = work.run_groups("clean", "cleaning, pairs", groups)
    for text, outcomes in zip(splits, done, strict=True):
        clean[folder_of(text.pair), text.split] = CleanText(
            text,
            report.total(outcome.result["removed"] for outcome in outcomes),
            tuple(map(part_of, outcomes)),
            tuple(outcome.folder for outcome in outcomes),
        )
    if settings.duplicates:
        names_of_texts = [[folder_of(pair) for pair in own] for own in every.values()]
        clean |= _without_duplicates(work, settings.duplicates, names_of_texts, clean)
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
    finding = []
    for names in every:
        texts = [clean[name, "train"] for name in names]
        files = [folder / SIGNATURES for text in texts for folder in text.folders]
        buckets = duplicates.buckets_for(sum(text.text.total for text in texts)) if files else 0
        size = sum(text.rows for text in texts) // max(buckets, 1)
        call = functools.partial(find_duplicates, files=files, buckets=buckets)
        calls = [functools.partial(call, bucket=number) for number in range(buckets)]
        finding.append([Unit(f"{names[0]}/{n}", own, size) for n, own in enumerate(calls)])
    found = work.run_groups("duplicates", "finding duplicates, pairs", finding)
    dropping = []
    for names, outcomes in zip(every, found, strict=True):
        files = [outcome.folder / DUPLICATES for outcome in outcomes]
        call = functools.partial(drop, files=files, kinds=kinds)
        number = 0
        for name in names:
            units = []
            for part in clean[name, "train"].parts:
                own = functools.partial(call, part=part, number=number)
                units.append(Unit(f"{names[-1]}/{number}", own, part.rows))
                number += 1
            dropping.append(units)
    dropped = work.run_groups("drop", "dropping duplicates, pairs", dropping)
    result = {}
    for name, outcomes in zip(itertools.chain.from_iterable(every), dropped, strict=True):
        text = clean[name, "train"]
        result[name, "train"] = dataclasses.replace(
            text,
            removed=report.total([text.removed, *(own.result["removed"] for own in outcomes)]),
            parts=tuple(map(part_of, outcomes)),
            folders=(*text.folders, *(outcome.folder for outcome in outcomes)),
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
    names: tuple[str, str],
    settings: Cleaning,
    held_out: Sequence[Path] = (),
) -> Mapping[str, Any]:
    """Writes the rows of a chunk that stay, their signatures, and samples of the other rows.

    `names` are the languages. `held_out` are the files of hashes of dev and test text.

    Returns:
      `rows`, the number of rows that stay; `removed`, the number that each filter dropped.
    """
    chunk = chunks.read(part.file)
    hashes = overlap.merge(map(np.load, held_out))
    cleaned = filters.clean(chunk.rows(), About(*names, settings, hashes))
    stay = chunk.take(cleaned.indices)
    if settings.duplicates:
        values = duplicates.signatures(cleaned.rows, settings.duplicates)
        duplicates.write_signatures(folder / SIGNATURES, values)
    return {**_write(folder, stay, cleaned.samples), "removed": dict(cleaned.removed)}


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
    return {"removed": removed, **_write(folder, stay, dropped)}


def _write(folder: Path, stay: Chunk, dropped: report.Samples) -> Mapping[str, Any]:
    """Writes what stays of a chunk, and samples of the rest."""
    chunks.write(folder / ROWS, chunks.content_of(stay))
    samples = json.dumps(dropped, ensure_ascii=True)
    (folder / _SAMPLES).write_text(samples, encoding="utf-8")
    return {"rows": len(stay)}


def part_of(outcome: Finished) -> Part:
    """Returns what a unit left of a chunk."""
    return Part(outcome.folder / ROWS, outcome.result["rows"])
