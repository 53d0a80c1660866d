"""Cleans the text of language pairs: the units of the stages in `filtering.py`, and their keys."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gshard_nmt.data.cleaning import duplicates, registry, report
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation import filtering, tokenizing
from gshard_nmt.data.preparation.chunks import Part
from gshard_nmt.data.preparation.filtering import Choice, Dropping, Filtering, Finding, HoldingOut
from gshard_nmt.data.preparation.texts import LanguageText, SplitText, folder_of
from gshard_nmt.data.preparation.work import Finished, Unit, Work, key_of

_VERSION = 3
"""Changes whenever the functions of these stages give other files for the same text."""

Run = Callable[[str, str, Work, Sequence[Unit]], list[Finished]]
"""Runs a stage: its name, what it does, its function, its units."""


@dataclasses.dataclass(frozen=True)
class CleanText:
    """What cleaning left of the text of a split.

    Attributes:
      text: the text.
      key: identifies the rows that stay.
      pairs: the number of pairs before cleaning.
      removed, edited: the number of pairs that each filter dropped and changed.
      parts: the chunks with the rows that stay.
      folders: the folders with samples of the other rows.
    """

    text: SplitText
    key: str
    pairs: int
    removed: Mapping[str, int]
    edited: Mapping[str, int]
    parts: tuple[Part, ...]
    folders: tuple[Path, ...]

    @property
    def rows(self) -> int:
        """The number of rows that stay."""
        return sum(part.rows for part in self.parts)

    def groups(self) -> list[tuple[Part, ...]]:
        """Returns the chunks of each shard."""
        groups = tokenizing.group([part.rows for part in self.parts])
        return [tuple(self.parts[i] for i in group) for group in groups]

    def samples(self) -> report.Samples:
        """Returns samples of the pairs that each filter dropped."""
        return filtering.samples_of(self.folders)


class Cleaner:
    """Runs the stages that clean."""

    def __init__(self, config: Data, settings: Cleaning, run: Run) -> None:
        """Runs nothing yet.

        Args:
          config: the settings of data.
          settings: the settings of cleaning.
          run: runs a stage.

        Raises:
          UserError: a filter is unknown, or a module with filters cannot be imported.
        """
        self._config, self._settings, self._run = config, settings, run
        self._identity = registry.identity(settings)
        self._keeps_all = not (
            settings.duplicates or registry.filters(settings) or config.maximum_pairs
        )

    def key(self, languages: LanguageText, pair: str) -> str:
        """Returns the key of what cleaning leaves of the training text of a pair.

        Duplicates of earlier text are dropped, so the key depends on all text up to this pair.

        Args:
          languages: the text of the pair's languages.
          pair: the name of the pair, see `texts.folder_of`.
        """
        keys = []
        for text in languages.train:
            keys.append(self._filter_key(text, languages.held_out))
            if folder_of(text.pair) == pair:
                break
        # Without duplicates to drop, no other text matters.
        return key_of(_VERSION, keys if self._settings.duplicates else keys[-1:])

    def dev_key(self, text: SplitText) -> str:
        """Returns the key of dev text without empty lines."""
        return key_of(_VERSION, text.key)

    def clean(self, every: Sequence[LanguageText]) -> dict[tuple[str, str], CleanText]:
        """Cleans the training and dev text of languages.

        Returns:
          The clean text by the name of the pair and the split.
        """
        held_out = self._hold_out(every)
        units: list[Unit] = []
        owners: list[tuple[SplitText, str]] = []
        counts = []
        clean = {}
        for languages, hashes in zip(every, held_out, strict=True):
            total = sum(text.total for text in languages.train)
            for text in languages.train:
                name = folder_of(text.pair)
                if self._keeps_all:
                    clean[name, "train"] = _whole(text, self.key(languages, name))
                    continue
                task = Filtering(
                    Path(),
                    0,
                    self._choice(text),
                    text.pair.source,
                    text.pair.target,
                    text.pair.subset,
                    self._settings,
                    hashes,
                    duplicates.buckets_for(total),
                )
                key = key_of(self._filter_key(text, languages.held_out), task.buckets)
                units += (new := list(_chunk_units(text, key, task)))
                owners.append((text, self.key(languages, name)))
                counts.append(len(new))
            for text in languages.held_out:
                if text.split == "dev":
                    choice = Choice(0, 0, 0)
                    task = Filtering(
                        Path(), 0, choice, text.pair.source, text.pair.target, text.pair.subset
                    )
                    units += (new := list(_chunk_units(text, self.dev_key(text), task)))
                    owners.append((text, self.dev_key(text)))
                    counts.append(len(new))
        done = self._run("clean", "cleaning, pairs", filtering.filter_rows, units)
        outcomes = iter(zip(units, done, strict=True))
        for (text, key), count in zip(owners, counts, strict=True):
            own = [next(outcomes) for _ in range(count)]
            clean[folder_of(text.pair), text.split] = _clean_text(text, key, own)
        return clean | self._without_duplicates(every, clean)

    def _hold_out(self, every: Sequence[LanguageText]) -> list[Path | None]:
        """Returns the file of hashes of dev and test text of each language pair."""
        if "overlap" not in registry.filters(self._settings):
            return [None] * len(every)
        units = []
        for languages in every:
            files = [
                known.chunk(number)
                for text in languages.held_out
                for known in text.texts
                for number in range(len(known.rows))
            ]
            first = languages.train[0].pair
            words = self._settings.overlap_words
            task = HoldingOut(tuple(files), first.source, first.target, words)
            keys = [text.key for text in languages.held_out]
            rows = sum(text.total for text in languages.held_out)
            units.append(Unit(folder_of(first), key_of(_VERSION, keys, words), task, rows))
        about = "reading dev and test text, pairs"
        outcomes = self._run("held_out", about, filtering.hold_out, units)
        return [outcome.folder / filtering.HELD_OUT for outcome in outcomes]

    def _without_duplicates(
        self, every: Sequence[LanguageText], clean: Mapping[tuple[str, str], CleanText]
    ) -> dict[tuple[str, str], CleanText]:
        """Returns the training text without duplicates."""
        kinds = self._settings.duplicates
        if not kinds:
            return {}
        finding: list[Unit] = []
        counts = []
        for languages in every:
            texts = [clean[folder_of(pair), "train"] for pair in languages.pairs]
            files = tuple(f / filtering.SIGNATURES for text in texts for f in text.folders)
            total = sum(text.total for text in languages.train)
            buckets = duplicates.buckets_for(total) if files else 0
            rows = sum(text.rows for text in texts)
            for bucket in range(buckets):
                key = key_of(_VERSION, [text.key for text in texts], kinds, buckets, bucket)
                name = f"{folder_of(languages.pairs[0])}/{bucket}"
                finding.append(Unit(name, key, Finding(files, bucket), rows // buckets))
            counts.append(buckets)
        about = "finding duplicates, pairs"
        buckets_done = iter(self._run("duplicates", about, filtering.find_duplicates, finding))
        dropping: list[Unit] = []
        owners = []
        for languages, count in zip(every, counts, strict=True):
            files = tuple(next(buckets_done).folder / filtering.DUPLICATES for _ in range(count))
            last = languages.pairs[-1]
            whole = clean[folder_of(last), "train"].key
            number = 0
            for pair in languages.pairs:
                text = clean[folder_of(pair), "train"]
                for part in text.parts:
                    task = Dropping(part.file, part.rows, number, files, kinds)
                    key = key_of(_VERSION, whole, kinds, number)
                    dropping.append(Unit(f"{folder_of(last)}/{number}", key, task, part.rows))
                    number += 1
                owners.append((folder_of(pair), text))
        outcomes = iter(self._run("drop", "dropping duplicates, pairs", filtering.drop, dropping))
        return {
            (name, "train"): _dropped(text, [next(outcomes) for _ in text.parts])
            for name, text in owners
        }

    def _choice(self, text: SplitText) -> Choice:
        limit = self._config.maximum_pairs
        # Without a limit, neither the seed nor other files change the rows.
        return Choice(limit, text.total, self._config.seed) if limit else Choice(0, 0, 0)

    def _filter_key(self, text: SplitText, held_out: Sequence[SplitText]) -> str:
        """Returns the key of what the filters leave of training text."""
        pair, choice = text.pair, dataclasses.astuple(self._choice(text))
        languages = (pair.source, pair.target, pair.subset)
        keys = [other.key for other in held_out]
        return key_of(_VERSION, text.key, choice, languages, keys, self._identity)


def report_of(text: CleanText) -> report.Direction:
    """Returns what cleaning did to the training text of a pair, for the page."""
    pair = text.text.pair
    languages = (pair.source, pair.target, pair.subset)
    return report.Direction(*languages, text.pairs, text.removed, text.samples(), text.edited)


def old_reports(folder: Path) -> list[report.Direction]:
    """Returns what `report_of` returned for earlier data; nothing if the report is not there."""
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


def _whole(text: SplitText, key: str) -> CleanText:
    """Returns a text of which all rows stay."""
    parts = [
        Part(known.chunk(number), rows)
        for known in text.texts
        for number, rows in enumerate(known.rows)
    ]
    return CleanText(text, key, text.total, {}, {}, tuple(parts), ())


def _chunk_units(text: SplitText, key: str, task: Filtering) -> Iterator[Unit]:
    """Yields a unit for each chunk of a text; `task` has what is common to them."""
    first = place = 0
    for known in text.texts:
        for number, rows in enumerate(known.rows):
            own = dataclasses.replace(task, file=known.chunk(number), first=first)
            yield Unit(f"{text.name}/{place}", key_of(key, place), own, rows)
            first += rows
            place += 1


def _clean_text(text: SplitText, key: str, units: Sequence[tuple[Unit, Finished]]) -> CleanText:
    outcomes = [outcome for _, outcome in units]
    parts = tuple(filtering.part_of(unit.task, o.folder, o.result) for unit, o in units)
    return CleanText(
        text,
        key,
        sum(o.result["pairs"] for o in outcomes),
        _sum([o.result["removed"] for o in outcomes]),
        _sum([o.result["edited"] for o in outcomes]),
        parts,
        tuple(o.folder for o in outcomes),
    )


def _dropped(text: CleanText, outcomes: Sequence[Finished]) -> CleanText:
    """Returns a text without its duplicates."""
    parts = [
        filtering.part_without(part, outcome.folder, outcome.result["rows"])
        for part, outcome in zip(text.parts, outcomes, strict=True)
    ]
    removed = _sum([text.removed, *(outcome.result["removed"] for outcome in outcomes)])
    folders = (*text.folders, *(outcome.folder for outcome in outcomes))
    return dataclasses.replace(text, removed=removed, parts=tuple(parts), folders=folders)


def _sum(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Adds up counts by name."""
    total: dict[str, int] = {}
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return total
