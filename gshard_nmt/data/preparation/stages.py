"""The stages of `gshard-data prepare` with their units, one method for each.

    read        an input of the corpus     -> its rows in chunks
    (stages that clean: see `filtering.py`)
    sample      some chunks of a direction -> lines that a vocabulary may be trained on
    vocabulary  a side                     -> a model file
    tokenize    some chunks of a direction -> a shard
                a language of a side       -> how well the vocabulary fits it

The key of a unit has the keys of all units that its text comes from. So a change of the corpus or of a
setting makes those units anew that depend on it, and no others.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation import inputs, tokenizing, vocabularies
from gshard_nmt.data.preparation.chunks import Part
from gshard_nmt.data.preparation.cleaning import Cleaner, CleanText
from gshard_nmt.data.preparation.inputs import Text
from gshard_nmt.data.preparation.text_sample import quotas
from gshard_nmt.data.preparation.texts import Direction
from gshard_nmt.data.preparation.tokenizing import Tokenizing
from gshard_nmt.data.preparation.vocabularies import Measuring, Sample, Sampling, Training
from gshard_nmt.data.preparation.work import Finished, Stage, Unit, Watch, WorkFolder, key_of
from gshard_nmt.data.sets.corpus import Input
from gshard_nmt.data.sets.manifest import SplitData, checksum
from gshard_nmt.data.text.vocabulary import VocabularySpec
from gshard_nmt.data.text.vocabulary_pair import text_sides
from gshard_nmt.data.text.vocabulary_report import Fit

_VERSION = 1
"""Changes whenever the functions of the stages give other files for the same text."""

_REPORT_CHUNKS = 8
"""The largest number of chunks of a direction that are read for the report about the vocabularies."""


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The shards of a split of a direction.

    Attributes:
      data: their sizes.
      files: the shards, in order.
      checksums: SHA-256 of each.
      fit_twice: the number of examples that would fit if both limits were twice as large.
    """

    data: SplitData
    files: tuple[Path, ...]
    checksums: tuple[str, ...]
    fit_twice: int = 0


class Stages:
    """Runs the stages in a work folder.

    Attributes:
      cleaner: runs the stages that clean.
    """

    def __init__(self, config: Data, settings: Cleaning, work: WorkFolder, watch: Watch) -> None:
        """Runs nothing yet.

        Args:
          config: the settings of data.
          settings: the settings of cleaning.
          work: the folder for finished units.
          watch: is told about the progress.
        """
        self._config, self._work, self._watch = config, work, watch
        self.cleaner = Cleaner(config, settings, self._run)

    def read(self, items: Sequence[Input]) -> dict[str, Text]:
        """Returns the text of each input, by its name."""
        units = [inputs.unit_of(item) for item in items]
        stamps = [inputs.stamps(item) for item in items]
        outcomes = self._run("read", "reading, bytes", inputs.read, units)
        texts = [inputs.text_of(outcome) for outcome in outcomes]
        for item, text, before in zip(items, texts, stamps, strict=True):
            inputs.remember(item, text, before)
        return {unit.name: text for unit, text in zip(units, texts, strict=True)}

    def sample(self, texts: Sequence[tuple[Direction, CleanText]], limit: int = 0) -> list[Sample]:
        """Chooses lines of training text at random.

        Args:
          texts: the directions and their training text.
          limit: the number of lines of each direction, for a report. 0 means the number of lines that
            the vocabularies are trained on.
        """
        config = self._config
        groups = [_some_chunks(text) if limit else text.groups() for _, text in texts]
        rows: dict[tuple[str, str], int] = {}
        for (direction, _), own in zip(texts, groups, strict=True):
            languages = (direction.source, direction.target)
            rows[languages] = rows.get(languages, 0) + sum(map(_rows, own))
        limits = dict.fromkeys(map("-".join, rows), limit)
        if not limit:
            sizes = {"-".join(languages): count for languages, count in rows.items()}
            # A joint vocabulary takes half of its lines from each side.
            lines = config.vocabulary_sentences // len(text_sides(config, "source"))
            limits = quotas(sizes, lines, config.vocabulary_temperature)
        units = []
        for (direction, text), own in zip(texts, groups, strict=True):
            languages = (direction.source, direction.target)
            stride = max(1, rows[languages] // limit) if limit else 1
            bounds = (limits["-".join(languages)], rows[languages] // stride, config.seed)
            facts = (direction.is_reversed, *languages, *bounds, stride)
            for number, parts in enumerate(own):
                task = Sampling(parts, *facts)
                key = key_of(_VERSION, text.key, number, facts)
                units.append(Unit(f"{direction.folder}/{number}", key, task, _rows(parts)))
        about = "sampling lines for the vocabularies, pairs"
        outcomes = self._run("sample", about, vocabularies.sample, units)
        folders: dict[tuple[str, str], list[Path]] = {languages: [] for languages in rows}
        for unit, outcome in zip(units, outcomes, strict=True):
            folders[unit.task.source, unit.task.target].append(outcome.folder)
        return [
            Sample(*names, limits["-".join(names)], tuple(own)) for names, own in folders.items()
        ]

    def train(
        self, samples: Sequence[Sample], specs: Mapping[str, VocabularySpec], key: str
    ) -> dict[str, Path]:
        """Trains vocabularies, and returns their model files by side.

        Args:
          samples: the lines to train on.
          specs: the size and the kind of each vocabulary.
          key: identifies the lines.
        """
        units = []
        for side, spec in specs.items():
            sides = text_sides(self._config, side)
            task = Training(side, sides, tuple(samples), spec)
            size = len(sides) * sum(sample.limit for sample in samples)
            units.append(Unit(side, key_of(key, dataclasses.astuple(spec)), task, size))
        about = "training the vocabularies, lines"
        outcomes = self._run("vocabulary", about, vocabularies.train, units)
        return {
            unit.name: outcome.folder / f"{unit.name}.model"
            for unit, outcome in zip(units, outcomes, strict=True)
        }

    def tokenize(
        self,
        texts: Sequence[tuple[Direction, str, CleanText]],
        models: Mapping[str, Path],
        keys: Sequence[str],
        samples: Sequence[Sample],
    ) -> tuple[list[Tokens], list[Fit]]:
        """Tokenizes each text, and measures the vocabularies at the same time.

        Args:
          texts: the direction, the split and the clean text.
          models: the model files of "source" and "target".
          keys: for each text, `Vocabulary.encoding_key` of both vocabularies.
          samples: the lines to measure the vocabularies on.
        """
        config = self._config
        lengths = (config.source_length, config.target_length)
        units: list[Unit] = []
        counts = []
        for (direction, split, text), vocabulary in zip(texts, keys, strict=True):
            groups = text.groups()
            for number, parts in enumerate(groups):
                task = Tokenizing(
                    parts,
                    direction.is_reversed,
                    direction.source,
                    direction.target,
                    direction.pair.subset,
                    (models["source"], models["target"]),
                    *lengths,
                )
                key = key_of(_VERSION, text.key, number, direction.is_reversed, lengths, vocabulary)
                units.append(Unit(f"{direction.folder}/{split}/{number}", key, task, _rows(parts)))
            counts.append(len(groups))
        units += _measuring_units(samples, models)
        outcomes = iter(self._run("tokenize", "tokenizing, pairs", _tokenize_or_measure, units))
        tokens = [
            _tokens(split, text, [next(outcomes) for _ in range(count)])
            for (_, split, text), count in zip(texts, counts, strict=True)
        ]
        return tokens, [Fit(**outcome.result) for outcome in outcomes]

    def _run(self, name: str, about: str, work: Any, units: Sequence[Unit]) -> list[Finished]:
        stage = Stage(name, about, work, units)
        if name != "read":  # its units may be done in two parts
            self._work.keep_only(stage)
        return self._work.run(stage, self._watch)


def _rows(parts: Sequence[Part]) -> int:
    return sum(part.rows for part in parts)


def _some_chunks(text: CleanText) -> list[tuple[Part, ...]]:
    """Returns a few chunks of a text, at equal distances."""
    parts = [part for part in text.parts if part.rows]
    return [(part,) for part in parts[:: max(-(-len(parts) // _REPORT_CHUNKS), 1)]]


def _measuring_units(samples: Sequence[Sample], models: Mapping[str, Path]) -> list[Unit]:
    """Returns a unit for each language of a side. Its size is 0, since its lines are counted already."""
    units = []
    for side, model in models.items():
        by_language: dict[str, list[Sample]] = {}
        for sample in samples:
            by_language.setdefault(getattr(sample, side), []).append(sample)
        for language, own in by_language.items():
            lines = [(sample.limit, folder.name) for sample in own for folder in sample.folders]
            task = Measuring(side, language, tuple(own), model)
            key = key_of(_VERSION, lines, checksum(model))
            units.append(Unit(f"{side}/{language}", key, task, 0))
    return units


def _tokenize_or_measure(task: Tokenizing | Measuring, folder: Path) -> Mapping[str, Any]:
    """Does a unit of the stage "tokenize"."""
    if isinstance(task, Measuring):
        return vocabularies.measure(task)
    return tokenizing.tokenize(task, folder)


def _tokens(split: str, text: CleanText, outcomes: Sequence[Finished]) -> Tokens:
    data, checksums = tokenizing.total_of([o.result for o in outcomes], split)
    data = dataclasses.replace(data, pairs=text.pairs, removed={**text.removed, **data.removed})
    files = tuple(o.folder / name for o in outcomes for name, *_ in o.result["files"])
    return Tokens(data, files, tuple(checksums), sum(o.result["fit_twice"] for o in outcomes))
