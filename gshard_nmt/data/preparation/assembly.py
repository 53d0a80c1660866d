"""The new folder of prepared data, put together of new and old shards; and what is left out of it."""

import contextlib
import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files
from gshard_nmt.data.cleaning import report
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.filtering import CleanText, CleanTexts
from gshard_nmt.data.preparation.plan import Direction, Models, Plan, folder_of
from gshard_nmt.data.preparation.tokenizing import TOO_LONG, Tokens
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.sets.manifest import (
    VOCABULARIES,
    PreparedPair,
    SplitData,
    link,
    pair_folder,
    write_manifest,
)
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.data.text.vocabulary_report import REPORT, Fit, VocabularyReport
from gshard_nmt.errors import UserError

SHARDED = ("train", "dev")
"""The splits that have shards. Evaluation reads test text from the corpus."""

Old = Mapping[str, Any] | None
"""The manifest of the old data; None if there is none."""

Reasons = dict[str, str]
"""Why directions are left out, by their folders: each has no training pair. The manifest keeps them."""

AllTokens = Mapping[tuple[str, str], Tokens]
"""The shards by the folder of the direction and the split."""


class NewFolder:
    """A folder of prepared data that becomes complete. Its shards are hard links."""

    def __init__(self, path: Path, out: Path, old: Old) -> None:
        self.path = path
        self._out, self._old = out, old
        self._checksums: dict[str, str] = {}
        self._pairs: list[PreparedPair] = []
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()

    def put(self, plan: Plan, direction: Direction, tokens: AllTokens) -> None:
        name = direction.folder
        splits = {"test": SplitData(plan.text(direction.pair, "test").total)}
        for split in SHARDED:
            shards = tokens.get((name, split), Tokens(SplitData(0)))
            splits[split] = shards.data
            places = zip(shards.data.files, shards.files, shards.checksums, strict=True)
            for (shard, *_), place, digest in places:
                self._link(place, f"{name}/{shard}", digest)
        self._add(direction, splits)

    def take_over(self, direction: Direction) -> None:
        assert self._old is not None
        name, sums = direction.folder, self._old.get("checksums", {})
        (entry,) = [pair for pair in self._old["pairs"] if _folder_of(pair) == name]
        splits = {s: SplitData.from_manifest(data) for s, data in entry["splits"].items()}
        for split in splits.values():
            for shard, *_ in split.files:
                place = f"{name}/{shard}"
                self._link(self._out / place, place, sums.get(place, ""))
        self._add(direction, splits)

    def put_vocabularies(self, models: Models) -> tuple[int, int]:
        for side, name in zip(SIDES, VOCABULARIES, strict=True):
            files.write(self.path / name, models[side])
        source, target = (Vocabulary.load(self.path / name) for name in VOCABULARIES)
        return source.size, target.size

    def finish(self, facts: dict[str, Any]) -> None:
        pairs = sorted(self._pairs, key=lambda p: (-p.splits["train"].examples, p.folder))
        write_manifest(self.path, pairs, facts, self._checksums)

    def report_cleaning(self, cleaned: Sequence[CleanText], names: Collection[str]) -> list[str]:
        """Writes the report, with the old facts of pairs not cleaned now; returns its warnings."""
        reports = []
        for text in cleaned:
            pair, counts = text.text.pair, (text.pairs, text.removed)
            languages = (pair.source, pair.target, pair.subset)
            reports.append(report.Direction(*languages, *counts, text.samples(), text.edited))
        wanted = set(names) - {entry.name for entry in reports}
        reports += [entry for entry in old_reports(self._out) if entry.name in wanted]
        return report.write_report(reports, self.path)

    def report_vocabularies(self, sizes: tuple[int, int], fits: Sequence[Fit]) -> VocabularyReport:
        """Writes the report, with the old facts of other languages; returns the part that is new."""
        names = {getattr(pair, side) for pair in self._pairs for side in SIDES}
        new = {(fit.side, fit.language) for fit in fits}
        old = []
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            old = json.loads((self._out / REPORT).read_bytes())["languages"]
            old = [Fit(**fit) for fit in old if fit["language"] in names]
            old = [fit for fit in old if (fit.side, fit.language) not in new]
        VocabularyReport(sizes, (*fits, *old)).write(self.path / REPORT)
        return VocabularyReport(sizes, tuple(fits))

    def _add(self, direction: Direction, splits: dict[str, SplitData]) -> None:
        languages = (direction.source, direction.target, direction.pair.language)
        self._pairs.append(PreparedPair(*languages, splits, direction.pair.subset))

    def _link(self, place: Path, name: str, digest: str) -> None:
        self._checksums[name] = digest
        link(place, self.path / name)


def reusable(out: Path, old: Old, keys: Mapping[str, str]) -> tuple[set[str], Reasons]:
    """Returns the folders of the directions whose shards the old data has, and those it leaves out.

    A direction with another key than in the manifest may have other training pairs now.
    """
    if old is None:
        return set(), {}
    same = {name for name, key in keys.items() if old.get("keys", {}).get(name) == key}
    complete = set()
    for pair in old["pairs"]:
        name = _folder_of(pair)
        shards = [s for split in pair["splits"].values() for s in split["files"]]
        paths = [(out / name / shard, size) for shard, size, _ in shards]
        if name in same and all(p.is_file() and p.stat().st_size == size for p, size in paths):
            complete.add(name)
    return complete, {n: reason for n, reason in old.get("left_out", {}).items() if n in same}


def _folder_of(pair: Mapping[str, Any]) -> str:
    return pair_folder(pair["source"], pair["target"], pair.get("subset", ""))


def old_reports(folder: Path) -> list[report.Direction]:
    reports = []
    try:
        for entry in json.loads((folder / report.JSON).read_bytes())["directions"]:
            dropped = {
                name: [report.Sample(0, text["source"], text["target"]) for text in texts]
                for name, texts in entry["samples"].items()
            }
            languages = (entry["source"], entry["target"], entry["subset"])
            pairs, removed, edited = entry["pairs"], entry["removed"], entry["edited"]
            reports.append(report.Direction(*languages, pairs, removed, dropped, edited))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return reports


def without_clean_text(directions: Iterable[Direction], clean: CleanTexts) -> Reasons:
    texts = {d.folder: clean[folder_of(d.pair), "train"] for d in directions}
    return {name: _reason(text) for name, text in texts.items() if not text.rows}


def _reason(text: CleanText) -> str:
    if not text.pairs:
        held_out = any(item.split != "train" for item in text.text.pair.texts)
        return "there is no training text" + (" beside its dev and test text" if held_out else "")
    counts = ", ".join(f"{name} {count:,}" for name, count in text.removed.items())
    return f"cleaning left out all {text.pairs:,} training pairs ({counts})"


def without_examples(directions: Iterable[Direction], tokens: AllTokens, config: Data) -> Reasons:
    reason = (
        f"all training pairs have more than {config.source_length} source or {config.target_length} "
        "target tokens"
    )
    return {d.folder: reason for d in directions if not tokens[d.folder, "train"].data.examples}


def check_rest(directions: Sequence[Direction], reasons: Reasons) -> None:
    """Raises UserError if all directions are left out. The message has the first three reasons."""
    if any(direction.folder not in reasons for direction in directions):
        return
    listed = "; ".join(f"{name}: {reason}" for name, reason in list(reasons.items())[:3])
    raise UserError(
        f"no training pair is left ({listed}). Add text, turn filters off with Cleaning.without or "
        "Cleaning.duplicates, or raise Data.source_length and Data.target_length."
    )


def too_long(tokens: AllTokens, config: Data) -> Iterator[str]:
    for (name, split), own in tokens.items():
        lost = own.data.removed.get(TOO_LONG, 0)
        clean = own.data.examples + lost
        if split == "train" and own.data.examples and lost > report.TOO_MUCH * clean:
            yield (
                f"{lost:,} of {clean:,} training pairs of {name} are left out: they have more than "
                f"Data.source_length = {config.source_length} or Data.target_length = "
                f"{config.target_length} tokens. Raise both; with twice as many tokens, "
                f"{own.fit_twice / clean:.0%} of the pairs stay."
            )
