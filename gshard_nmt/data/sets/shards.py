"""Prepared data on disk: tokenized examples in files (shards), vocabularies, and a manifest.

manifest.json                   lists the contents and their origin; written last
source.model, target.model      the vocabularies
<source>-<target>/<split>-00000.ids ...     the shards, see `records`
<source>-<target>.<subset>/...  the same for a named subset of the corpus
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import outputs, paths
from gshard_nmt.data.config import ONLY_PREPARED, Data
from gshard_nmt.data.language_codes import same
from gshard_nmt.data.schedule import Component, wrong_names
from gshard_nmt.data.sets import manifest as manifests
from gshard_nmt.data.sets.manifest import FORMAT, MANIFEST, VOCABULARIES, PreparedPair, checksum
from gshard_nmt.data.sets.records import LocalCopies, OpenShards, ShardReader
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.reading import patiently_or_fail


def word_type(*vocabularies: int) -> np.dtype:
    """Returns the type of the ids on disk, for vocabularies of these sizes."""
    return np.dtype("<u2" if max(vocabularies) <= 1 << 16 else "<u4")


@dataclasses.dataclass(frozen=True)
class PreparedData:
    """A folder that `gshard-data prepare` made, and the content of its manifest."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path, check_files: bool = True) -> "PreparedData":
        """Reads the manifest and checks that every file exists and has its size.

        The vocabularies are also compared with their checksums; `changed_files` does it for the shards.
        In a run of many processes only the first looks at every file (`check_files`), to spare a file
        server.

        Raises:
          UserError: the folder does not exist, is not prepared data, or is damaged.
          TryAgain: it cannot be read now.
        """
        remedy = "make it with gshard-data prepare"
        with paths.reaching("data", folder):
            if not folder.is_dir():
                raise UserError(f"--data {folder}: there is no such folder; {remedy}.")
            manifest = manifests.read_manifest(folder)
        if manifest is None:
            is_there = (folder / MANIFEST).exists()
            what = f"its {MANIFEST} is of another program" if is_there else f"it has no {MANIFEST}"
            raise UserError(f"--data {folder} is not prepared data: {what}; {remedy}.")
        if manifest["format"] != FORMAT:
            raise UserError(
                f"--data {folder} has the format {manifest['format']!r}, but this version reads "
                f"{FORMAT!r}. Make it again with gshard-data prepare, for a new run: a run of the "
                "old data cannot be resumed."
            )
        data = cls(folder, manifest)
        if check_files:
            data._check_sizes()
        data._check_vocabularies()
        return data

    @functools.cached_property
    def pairs(self) -> tuple[PreparedPair, ...]:
        """All directions of translation, from most to fewest training examples."""
        return tuple(map(PreparedPair.from_manifest, self.manifest["pairs"]))

    @property
    def source_vocabulary(self) -> int:
        return self.manifest["source_vocabulary"]

    @property
    def target_vocabulary(self) -> int:
        return self.manifest["target_vocabulary"]

    def pairs_of(self, config: Data) -> tuple[PreparedPair, ...]:
        """Returns the directions that a run uses. Raises UserError if the data does not fit."""
        for error in self.misfits(config):
            raise error
        return tuple(p for p in self.pairs if config.uses(p.source, p.target, p.language))

    def misfits(self, config: Data) -> Iterator[UserError]:
        """Yields an error for each setting of a run that does not fit the prepared data."""
        prepared, wanted = self.manifest["data"], config.shaping()
        for name in ("source_length", "target_length"):
            if wanted[name] < prepared[name]:
                yield UserError(
                    f"--data {self.folder} has examples of up to {prepared[name]} tokens, but "
                    f"Data.{name} is {wanted[name]}; set it to {prepared[name]} or more, or prepare "
                    "the data again.",
                    [f"Data.{name}"],
                )
        for name in _ID_SETTINGS:
            if wanted[name] != prepared.get(name, wanted[name]):
                yield self._misfit(name, prepared[name], wanted[name])
        yield from unknown_languages(config, self.pairs, f"--data {self.folder}")
        yield from wrong_names(config.phases, tuple(map(_component, self.pairs)))

    def _misfit(self, name: str, prepared: object, wanted: object) -> UserError:
        return UserError(
            f"--data {self.folder} was prepared with Data.{name} = {prepared!r}, but the config has "
            f"{wanted!r}; use the same value, or prepare the data again.",
            [f"Data.{name}"],
        )

    def fitted(self, config: Data, set_by_user: Collection[str] = ()) -> Data:
        """Returns the settings of a run, in which those that only `prepare` reads are those of the data.

        Raises UserError if one of the settings `set_by_user` differs, or as `pairs_of` does.
        """
        self.pairs_of(config)
        prepared = {**Data().shaping(), **self.manifest["data"]}
        wanted = config.shaping()
        changed = {name: prepared[name] for name in ONLY_PREPARED if prepared[name] != wanted[name]}
        for name in [name for name in changed if name in set_by_user]:
            raise self._misfit(name, changed[name], wanted[name])
        values: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in changed.items()}
        return dataclasses.replace(config, **values)

    def languages(self, config: Data, split: str = "train") -> list[str]:
        """Returns the languages of a run that have text of a split."""
        pairs = [pair for pair in self.pairs_of(config) if pair.splits[split].examples]
        return list(dict.fromkeys(pair.language for pair in pairs))

    def components(self, config: Data) -> tuple[Component, ...]:
        return tuple(map(_component, self.pairs_of(config)))

    def reader(self, pair: PreparedPair, split: str) -> ShardReader:
        return self.reader_of_all([pair], split)

    def reader_of_all(
        self, pairs: Sequence[PreparedPair], split: str, shards: OpenShards | None = None
    ) -> ShardReader:
        """Returns a reader of the examples of a split of several pairs, one pair after the other."""
        files = [
            (f"{pair.folder}/{name}", size, count)
            for pair in pairs
            for name, size, count in pair.splits[split].files
        ]
        word = word_type(self.source_vocabulary, self.target_vocabulary)
        return ShardReader(self._copies, files, word, shards)

    @functools.cached_property
    def _copies(self) -> LocalCopies:
        identity = json.dumps([str(self.folder), self.manifest], sort_keys=True)
        digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
        return LocalCopies.open(self.folder, digest, self.manifest.get("checksums", {}))

    def summary(self, config: Data) -> dict[str, Any]:
        """Returns the facts about the data that a run folder keeps, as values for JSON.

        The counts of `pairs` are of all subsets of a direction that the run uses.
        """
        directions: dict[tuple[str, str], dict[str, Any]] = {}
        for pair in self.pairs_of(config):
            counts = {
                "train_pairs": pair.splits["train"].examples,
                "dev_pairs": pair.splits["dev"].pairs,
                "test_pairs": pair.splits["test"].pairs,
            }
            names = {"source": pair.source, "target": pair.target, "language": pair.language}
            entry = directions.setdefault((pair.source, pair.target), names)
            entry |= {name: entry.get(name, 0) + count for name, count in counts.items()}
        keys = ("direction", "source_vocabulary", "target_vocabulary", "corpus_fingerprint")
        facts = {name: self.manifest[name] for name in keys} | {"pairs": list(directions.values())}
        if "subset_fingerprints" in self.manifest:
            facts["subset_fingerprints"] = self.manifest["subset_fingerprints"]
        components = self.components(config)
        for phase in config.phases:
            phase.rates(components)  # a phase without text is an error before the run begins
        return facts

    def changed_files(self) -> Iterator[str]:
        """Yields each file that differs from its recorded checksum. Reads all of them."""
        for name, expected in self.manifest.get("checksums", {}).items():
            if not (self.folder / name).is_file() or checksum(self.folder / name) != expected:
                yield name

    def _check_sizes(self) -> None:
        expected = manifests.files_of(self.manifest)
        sizes = patiently_or_fail(
            lambda: paths.sizes(self.folder, expected), self.folder, f"--data {self.folder}"
        )
        for name, size in expected.items():
            actual = sizes.get(name)
            if actual is None or size not in (None, actual):
                what = "is missing" if actual is None else f"has {actual} bytes instead of {size}"
                raise manifests.damaged(self.folder, f"{name} {what}")

    def _check_vocabularies(self) -> None:
        checksums = self.manifest.get("checksums", {})
        for name in VOCABULARIES:
            file = self.folder / name
            try:
                actual = patiently_or_fail(
                    functools.partial(checksum, file), file, f"--data {self.folder}"
                )
            except FileNotFoundError as error:
                raise manifests.damaged(self.folder, f"{name} is missing") from error
            if name in checksums and actual != checksums[name]:
                raise manifests.damaged(self.folder, f"{name} was changed")


def _component(pair: PreparedPair) -> Component:
    examples = pair.splits["train"].examples
    return Component(pair.source, pair.target, pair.language, pair.subset, examples)


_ID_SETTINGS = (
    *("direction", "vocabulary", "source_vocabulary", "target_vocabulary"),
    *("vocabulary_model", "language_tags"),
)
"""The settings of `Data` that decide which ids a sentence becomes."""


def unknown_languages(config: Data, pairs: Sequence[Any], where: str) -> Iterator[UserError]:
    """Yields an error for each language of the config that no pair has, of a corpus or prepared."""
    used = [p for p in pairs if config.uses(p.source, p.target, p.language)]
    present = {tag for p in used for tag in (p.language, p.source, p.target)}
    known = sorted({pair.language for pair in pairs})
    for tag in config.languages:
        if not any(same(tag, other) for other in present):
            yield UserError(
                f"Data.languages names {tag!r}, which {where} does not have{did_you_mean(tag, known)} "
                f"It has: {', '.join(known)}.",
                ["Data.languages"],
            )


ADDED = "added"
"""The key of the manifest that names the language that was added."""


def join(old: PreparedData, new: PreparedData, language: str, out: Path) -> PreparedData:
    """Makes prepared data of the shards of two folders, with the vocabularies of the new one.

    Both must have been tokenized with vocabularies that give old text the same ids, see
    `preparation/vocabulary_growth.py`. The corpus fingerprint stays that of the old data. The new data
    has only named subsets, and their fingerprints are added.
    """
    words = [word_type(d.source_vocabulary, d.target_vocabulary) for d in (old, new)]
    if words[0] != words[1]:
        raise UserError(
            f"the new vocabularies have {new.source_vocabulary:,} and {new.target_vocabulary:,} pieces, "
            "but the prepared data of the run has ids of 16 bits, at most 65,536 pieces. Give a smaller "
            "--new_pieces."
        )
    # `key` tells gshard-data prepare that data is up to date, and it did not make this.
    own = ("format", "pairs", "checksums", "key", "texts")
    facts = {name: value for name, value in old.manifest.items() if name not in own}
    prints = [d.manifest.get("subset_fingerprints", {}) for d in (old, new)]
    facts |= {name: new.manifest[name] for name in ("source_vocabulary", "target_vocabulary")}
    facts |= {"subset_fingerprints": prints[0] | prints[1], ADDED: language}
    known: dict[str, str] = {}
    with outputs.new_folder(out) as folder:
        for data in (old, new):
            for name, size in manifests.files_of(data.manifest).items():
                if name not in VOCABULARIES or data is new:
                    place = data.folder / name if size is None else data._copies.path(name, size)
                    manifests.link(place, folder / name)
                    known[name] = data.manifest.get("checksums", {}).get(name, "")
        pairs = [*old.pairs, *new.pairs]
        pairs.sort(key=lambda pair: (-pair.splits["train"].examples, pair.folder))
        manifests.write_manifest(folder, pairs, facts, known)
    return PreparedData.open(out)
