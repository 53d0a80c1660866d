"""The new folder of prepared data, put together of new and old shards."""

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files
from gshard_nmt.data.cleaning import report
from gshard_nmt.data.preparation.cleaning import CleanText, old_reports, report_of
from gshard_nmt.data.preparation.plan import Models, Plan
from gshard_nmt.data.preparation.stages import Tokens
from gshard_nmt.data.preparation.texts import Direction
from gshard_nmt.data.sets.manifest import (
    VOCABULARIES,
    PreparedPair,
    SplitData,
    pair_folder,
    write_manifest,
)
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.data.text.vocabulary_pair import SIDES
from gshard_nmt.data.text.vocabulary_report import REPORT, Fit, VocabularyReport

SHARDED = ("train", "dev")
"""The splits that have shards. Evaluation reads test text from the corpus."""

_NOTHING = Tokens(SplitData(0), (), ())

Old = Mapping[str, Any] | None
"""The manifest of the old data; None if there is none."""


class NewFolder:
    """A folder of prepared data that becomes complete. Its shards are hard links.

    Attributes:
      path: the folder.
    """

    def __init__(self, path: Path, out: Path, old: Old) -> None:
        """Makes an empty folder.

        Args:
          path: the folder. If it exists, it is made anew.
          out: the folder with the old data.
          old: the manifest of the old data.
        """
        self.path = path
        self._out, self._old = out, old
        self._checksums: dict[str, str] = {}
        self._pairs: list[PreparedPair] = []
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()

    def put(
        self, plan: Plan, direction: Direction, tokens: Mapping[tuple[str, str], Tokens]
    ) -> None:
        """Adds the new shards of a direction.

        Args:
          plan: what is to be made.
          direction: the direction.
          tokens: the shards by the folder of the direction and the split.
        """
        name = direction.folder
        splits = {"test": SplitData(plan.text(direction.pair, "test").total)}
        for split in SHARDED:
            shards = tokens.get((name, split), _NOTHING)
            splits[split] = shards.data
            places = zip(shards.data.files, shards.files, shards.checksums, strict=True)
            for (shard, *_), place, digest in places:
                self._link(place, f"{name}/{shard}", digest)
        self._add(direction, splits)

    def take_over(self, direction: Direction) -> None:
        """Adds the shards of a direction that the old data has."""
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
        """Adds the vocabularies, and returns their sizes."""
        for side, name in zip(SIDES, VOCABULARIES, strict=True):
            files.write(self.path / name, models[side])
        source, target = (Vocabulary.load(self.path / name) for name in VOCABULARIES)
        return source.size, target.size

    def finish(self, facts: dict[str, Any]) -> None:
        """Writes the manifest with `facts`."""
        pairs = sorted(self._pairs, key=lambda p: (-p.splits["train"].examples, p.folder))
        write_manifest(self.path, pairs, facts, self._checksums)

    def report_cleaning(self, cleaned: Sequence[CleanText], names: Collection[str]) -> list[str]:
        """Writes the report about cleaning, and returns its warnings.

        Args:
          cleaned: the training text that was cleaned now.
          names: the names of all pairs. What is known of the others comes from the old report.
        """
        reports = [report_of(text) for text in cleaned]
        wanted = set(names) - {entry.name for entry in reports}
        reports += [entry for entry in old_reports(self._out) if entry.name in wanted]
        return report.write_report(reports, self.path)

    def report_vocabularies(self, sizes: tuple[int, int], fits: Sequence[Fit]) -> VocabularyReport:
        """Writes the report about the vocabularies, and returns the part that is new.

        Args:
          sizes: the sizes of the source and the target vocabulary.
          fits: what was measured now. What is known of other languages is kept.
        """
        names = {getattr(pair, side) for pair in self._pairs for side in SIDES}
        new = {(fit.side, fit.language) for fit in fits}
        old = [
            fit
            for fit in _old_fits(self._out)
            if fit.language in names and (fit.side, fit.language) not in new
        ]
        VocabularyReport(sizes, (*fits, *old)).write(self.path / REPORT)
        return VocabularyReport(sizes, tuple(fits))

    def _add(self, direction: Direction, splits: dict[str, SplitData]) -> None:
        languages = (direction.source, direction.target, direction.pair.language)
        self._pairs.append(PreparedPair(*languages, splits, direction.pair.subset))

    def _link(self, place: Path, name: str, digest: str) -> None:
        """Gives a file a second name, or copies it if the file system has no hard links."""
        self._checksums[name] = digest
        new = self.path / name
        new.parent.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):
            os.link(place, new)
            return
        shutil.copyfile(place, new)


def reusable(out: Path, old: Old, keys: Mapping[str, str]) -> set[str]:
    """Returns the folders of the directions whose shards the old data has.

    Args:
      out: the folder of the old data.
      old: its manifest.
      keys: the keys of the directions by their folders.
    """
    if old is None:
        return set()
    complete = set()
    for pair in old["pairs"]:
        name = _folder_of(pair)
        shards = [s for split in pair["splits"].values() for s in split["files"]]
        are_there = all(_has_size(out / name / shard, size) for shard, size, _ in shards)
        if are_there and name in keys and old.get("keys", {}).get(name) == keys[name]:
            complete.add(name)
    return complete


def _folder_of(pair: Mapping[str, Any]) -> str:
    """Returns the folder of a pair of the manifest."""
    return pair_folder(pair["source"], pair["target"], pair.get("subset", ""))


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _old_fits(folder: Path) -> list[Fit]:
    """Returns what the report about the vocabularies says; nothing if it cannot be read."""
    try:
        return [Fit(**fit) for fit in json.loads((folder / REPORT).read_bytes())["languages"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
