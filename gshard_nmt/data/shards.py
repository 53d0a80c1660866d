"""Prepared data on disk: tokenised examples in array_record files, and a manifest.

    manifest.json                   written last: what there is and what it was made from
    source.model, target.model      the vocabularies
    <source>-<target>/<split>-00000.array_record ...

A record is one example in little-endian words, uint16 where both vocabularies have at most 65,536
ids and uint32 otherwise: the number of source ids, the source ids with tags and EOS, the target ids
with EOS. The example [7, 8, EOS] -> [9, EOS] is `3 7 8 1 9 1`.
"""

import dataclasses
import difflib
import functools
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.config import Data
from gshard_nmt.errors import UserError

MANIFEST = "manifest.json"
FORMAT = "gshard-nmt data 1"
SHARD_EXAMPLES = 1 << 20
# One record a chunk, no compression: half a million random reads a second (ids compress badly).
_WRITE_OPTIONS = "group_size:1,uncompressed"
_READ_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One training pair.

    Attributes:
      source: <int>[n], tags first, EOS last.
      target: <int>[m], EOS last, no BOS.
      language: number of its language among those of the run.
    """

    source: np.ndarray
    target: np.ndarray
    language: int


@dataclasses.dataclass(frozen=True)
class SplitData:
    """One split of one pair of languages.

    Attributes:
      pairs: lines of the corpus.
      examples: of them prepared; test text is not, evaluation reads it from the corpus.
      source_tokens, target_tokens: of the examples.
      spelled_tokens: tokens that are bytes of rare characters, or unknown.
      files: names of the shards and their sizes in bytes, in order.
    """

    pairs: int
    examples: int = 0
    source_tokens: int = 0
    target_tokens: int = 0
    spelled_tokens: int = 0
    files: tuple[tuple[str, int], ...] = ()

    @property
    def tokens(self) -> int:
        """Source and target."""
        return self.source_tokens + self.target_tokens


@dataclasses.dataclass(frozen=True)
class PreparedPair:
    """One direction of translation.

    Attributes:
      source, target: BCP 47 tags.
      language: the one of them that is not English; the corpus's first where neither is.
      splits: "train", "dev" and "test".
    """

    source: str
    target: str
    language: str
    splits: dict[str, SplitData]


class ShardWriter:
    """Writes the examples of one split."""

    def __init__(self, folder: Path, prefix: str, word: np.dtype) -> None:
        """Shards are `folder/prefix-00000.array_record` and so on, made of words of this type."""
        self._folder, self._prefix, self._word = folder, prefix, word
        self._files: list[Path] = []
        self._writer: Any = None
        self._left = 0

    def write(self, examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Appends examples, (source ids, target ids)."""
        words = [[len(source), *source, *target] for source, target in examples]
        flat = np.fromiter(itertools.chain.from_iterable(words), self._word).tobytes()
        ends = np.cumsum([len(example) for example in words]) * self._word.itemsize
        begin = 0
        for end in ends.tolist():
            if not self._left:
                self._next_shard()
            self._writer.write(flat[begin:end])
            self._left -= 1
            begin = end

    def close(self) -> tuple[tuple[str, int], ...]:
        """Finishes the last shard; returns the names and sizes of all."""
        if self._writer is not None:
            self._writer.close()
        return tuple((file.name, file.stat().st_size) for file in self._files)

    def _next_shard(self) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        if self._writer is not None:
            self._writer.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._prefix}-{len(self._files):05}.array_record"
        self._files.append(self._folder / name)
        self._writer = ArrayRecordWriter(str(self._files[-1]), _WRITE_OPTIONS)
        self._left = SHARD_EXAMPLES


class ShardReader:
    """Random access to the examples of one split; threads may share it."""

    def __init__(self, folder: Path, split: SplitData, word: np.dtype) -> None:
        """Opens nothing yet."""
        self._paths = [folder / name for name, _ in split.files]
        self._readers: dict[int, Any] = {}
        self._word = word
        self._examples = split.examples

    def __len__(self) -> int:
        return self._examples

    def read(self, indices: np.ndarray, language: int = 0) -> list[Example]:
        """The examples at int64[n] indices, in that order, marked with the number of a language."""
        shards = indices // SHARD_EXAMPLES
        records: list[bytes] = [b""] * len(indices)
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            found = self._reader(shard).read((indices[places] % SHARD_EXAMPLES).tolist())
            for place, record in zip(places.tolist(), found, strict=True):
                records[place] = record
        return [self._example(record, language) for record in records]

    def _example(self, record: bytes, language: int) -> Example:
        words = np.frombuffer(record, self._word)
        end = int(words[0]) + 1
        return Example(words[1:end], words[end:], language)

    def _reader(self, shard: int) -> Any:
        from array_record.python.array_record_module import ArrayRecordReader

        # Two threads that come first at once open it twice, and one of the two is kept.
        if shard not in self._readers:
            reader = ArrayRecordReader(
                str(self._paths[shard]), options=_READ_OPTIONS, file_reader_buffer_size=1 << 15
            )
            self._readers.setdefault(shard, reader)
        return self._readers[shard]


def word_type(*vocabularies: int) -> np.dtype:
    """The word that holds every id of vocabularies of these sizes."""
    return np.dtype("<u2" if max(vocabularies) <= 1 << 16 else "<u4")


def pair_folder(source: str, target: str) -> str:
    """The name of the folder of a pair."""
    return f"{source}-{target}"


@dataclasses.dataclass(frozen=True)
class PreparedData:
    """A folder that `gshard-data prepare` made.

    Attributes:
      folder: where it is.
      manifest: what `manifest.json` holds.
    """

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "PreparedData":
        """Reads the manifest and checks that every file is there and whole.

        Raises:
          UserError: there is no such folder, it is not prepared data, or it is damaged.
        """
        again = "make it with gshard-data prepare"
        if not folder.is_dir():
            raise UserError(f"--data {folder}: there is no such folder; {again}.")
        manifest = read_manifest(folder)
        if manifest is None:
            raise UserError(f"--data {folder} is not prepared data: it has no {MANIFEST}; {again}.")
        if manifest["format"] != FORMAT:
            raise UserError(
                f"--data {folder} is of the format {manifest['format']!r}, and this version reads "
                f"{FORMAT!r}; {again} again."
            )
        data = cls(folder, manifest)
        data._check_files()
        return data

    @functools.cached_property
    def pairs(self) -> tuple[PreparedPair, ...]:
        """Every direction of translation, most training examples first."""
        return tuple(
            PreparedPair(
                pair["source"],
                pair["target"],
                pair["language"],
                {name: SplitData(**split) for name, split in pair["splits"].items()},
            )
            for pair in self.manifest["pairs"]
        )

    @property
    def source_vocabulary(self) -> int:
        """V of the source."""
        return self.manifest["source_vocabulary"]

    @property
    def target_vocabulary(self) -> int:
        """V of the target."""
        return self.manifest["target_vocabulary"]

    def pairs_of(self, config: Data) -> tuple[PreparedPair, ...]:
        """The directions of translation that a run uses, most training examples first.

        Raises:
          UserError: the data was prepared in another way than the run wants it, or does not have a
            language of the run.
        """
        self._check_config(config)
        known = list(dict.fromkeys(pair.language for pair in self.pairs))
        for language in config.languages:
            if language not in known:
                raise unknown_language(language, known, f"--data {self.folder}")
        return tuple(
            p for p in self.pairs if not config.languages or p.language in config.languages
        )

    def languages(self, config: Data) -> list[str]:
        """The languages that a run uses, most training examples first; errors as `pairs_of`."""
        return list(dict.fromkeys(pair.language for pair in self.pairs_of(config)))

    def reader(self, pair: PreparedPair, split: str) -> ShardReader:
        """Random access to the examples of a split."""
        folder = self.folder / pair_folder(pair.source, pair.target)
        word = word_type(self.source_vocabulary, self.target_vocabulary)
        return ShardReader(folder, pair.splits[split], word)

    def summary(self, config: Data | None = None) -> dict[str, Any]:
        """What a run folder keeps of its data, for JSON; with `config` only the run's languages.

        Returns:
          direction, source_vocabulary, target_vocabulary (sizes), corpus_fingerprint, and pairs:
          source, target, language, train_pairs (examples), dev_pairs, test_pairs.
        """
        pairs = self.pairs if config is None else self.pairs_of(config)
        kept = ("direction", "source_vocabulary", "target_vocabulary", "corpus_fingerprint")
        return {name: self.manifest[name] for name in kept} | {
            "pairs": [
                {
                    "source": pair.source,
                    "target": pair.target,
                    "language": pair.language,
                    "train_pairs": pair.splits["train"].examples,
                    "dev_pairs": pair.splits["dev"].pairs,
                    "test_pairs": pair.splits["test"].pairs,
                }
                for pair in pairs
            ]
        }

    def _check_files(self) -> None:
        files: list[tuple[str, int | None]] = [("source.model", None), ("target.model", None)]
        for pair in self.pairs:
            folder = pair_folder(pair.source, pair.target)
            for split in pair.splits.values():
                files += [(f"{folder}/{name}", size) for name, size in split.files]
        for name, size in files:
            path = self.folder / name
            found = path.stat().st_size if path.exists() else None
            if found is None or size not in (None, found):
                what = "is missing" if found is None else f"has {found} bytes instead of {size}"
                raise UserError(
                    f"--data {self.folder} is damaged: {name} {what}; remove the folder and make it "
                    "again with gshard-data prepare."
                )

    def _check_config(self, config: Data) -> None:
        before, now = self.manifest["data"], config.shaping()
        for name in ("source_length", "target_length"):
            if now[name] < before[name]:
                raise UserError(
                    f"--data {self.folder} holds examples of up to {before[name]} tokens, and "
                    f"Data.{name} is {now[name]}; set it to {before[name]} or more, or prepare the "
                    "data again."
                )
        for name in _SHAPES_IDS:
            if now[name] != before[name]:
                raise UserError(
                    f"--data {self.folder} was prepared with Data.{name} = {before[name]!r}, and the "
                    f"config says {now[name]!r}; use the same, or prepare the data again."
                )


_SHAPES_IDS = (
    "direction",
    "source_vocabulary",
    "target_vocabulary",
    "vocabulary_model",
    "language_tags",
)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What the manifest of a folder says; None where there is none that is ours."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    is_ours = isinstance(manifest, dict) and str(manifest.get("format")).startswith("gshard-nmt ")
    return manifest if is_ours else None


def write_manifest(folder: Path, pairs: Iterable[PreparedPair], facts: dict[str, Any]) -> None:
    """Writes the manifest: the format, these facts, and the pairs."""
    manifest = {"format": FORMAT, **facts, "pairs": [dataclasses.asdict(pair) for pair in pairs]}
    text = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def unknown_language(given: str, known: Sequence[str], where: str) -> UserError:
    """The error for a language that is not there, with those that are and the most alike."""
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return UserError(
        f"Data.languages names {given!r}, which {where} does not have.{hint} "
        f"It has: {', '.join(sorted(known))}."
    )
