"""Units about the vocabularies: samples of the lines of each direction, training, and a report."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from gshard_nmt.data.preparation.chunks import Part
from gshard_nmt.data.preparation.text_sample import Candidates, Sampler, merge, text_seed
from gshard_nmt.data.text.vocabulary import Vocabulary, VocabularySpec, train_vocabulary
from gshard_nmt.data.text.vocabulary_pair import SIDES
from gshard_nmt.data.text.vocabulary_report import LINES, fit_of


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The task of a unit: some cleaned chunks of a direction.

    Attributes:
      parts: the chunks.
      is_reversed: whether the second side of each row is the source.
      source, target: BCP 47 tags of the languages.
      limit: the number of lines to choose from the whole text of the direction.
      total: the number of rows that all units of the direction read.
      seed: `Data.seed`.
      stride: 1 reads every row; n reads every n-th row of a chunk, which is enough for a report.
    """

    parts: tuple[Part, ...]
    is_reversed: bool
    source: str
    target: str
    limit: int
    total: int
    seed: int
    stride: int = 1


def sample(task: Sampling, folder: Path) -> Mapping[str, Any]:
    """Writes the lines of each side that may be in the sample.

    Most units of a large text write few lines. A line is left out if its hash is so large that, as a
    rule, twice the limit of other lines have smaller hashes.

    Returns:
      `lines`, the number of candidates of each side.
    """
    # The hashes are evenly distributed below 2**64.
    largest = min((2 * task.limit + 1000 << 64) // max(task.total, 1), (1 << 64) - 1)
    samplers = {
        side: Sampler(task.limit, text_seed(task.seed, side, task.source, task.target))
        for side in SIDES
    }
    for part in task.parts:
        chunk = part.read()
        sides = (chunk.sources, chunk.targets)
        for side, lines in zip(SIDES, sides[::-1] if task.is_reversed else sides, strict=True):
            samplers[side].add(lines[:: task.stride])
    counts = {}
    for side, sampler in samplers.items():
        chosen = sampler.candidates()
        hashes = np.array(chosen.hashes, np.uint64)
        number = int(np.searchsorted(hashes, np.array(largest, np.uint64), side="right"))
        _write(folder / side, chosen.lines[:number], hashes[:number])
        counts[side] = number
    return {"lines": counts}


@dataclasses.dataclass(frozen=True)
class Sample:
    """Lines of the text of a direction, chosen at random.

    Attributes:
      source, target: BCP 47 tags of the languages.
      limit: the largest number of lines of each side.
      folders: what the units of `sample` wrote.
    """

    source: str
    target: str
    limit: int
    folders: tuple[Path, ...]

    def lines(self, side: str) -> tuple[str, ...]:
        """Returns the lines of a side, in an order that is random but always the same."""
        parts = (_read(folder / side, self.limit) for folder in self.folders)
        return merge(parts, self.limit).lines


@dataclasses.dataclass(frozen=True)
class Training:
    """The task of a unit: a vocabulary to train.

    Attributes:
      side: "source" or "target", the name of its file.
      text: the sides of the text that it is trained on.
      samples: the lines of each direction.
      spec: the size and the kind of the vocabulary.
    """

    side: str
    text: tuple[str, ...]
    samples: tuple[Sample, ...]
    spec: VocabularySpec


def train(task: Training, folder: Path) -> Mapping[str, Any]:
    """Trains a vocabulary and writes its model file into a folder.

    Returns:
      `lines`, the number of lines that it was trained on, and `size`, its number of pieces.
    """
    lines = _lines_of(task)
    vocabulary = train_vocabulary(lines, task.spec, folder / f"{task.side}.model")
    return {"lines": len(lines), "size": vocabulary.size}


def _lines_of(task: Training) -> list[str]:
    """Returns the distinct lines that a vocabulary is trained on."""
    chosen = (sample.lines(side) for side in task.text for sample in task.samples)
    return list(dict.fromkeys(itertools.chain.from_iterable(chosen)))


@dataclasses.dataclass(frozen=True)
class Measuring:
    """The task of a unit: how well a vocabulary fits a language.

    Attributes:
      side: "source" or "target".
      language: BCP 47 tag.
      samples: lines of the directions that have the language on this side.
      vocabulary: the model file.
    """

    side: str
    language: str
    samples: tuple[Sample, ...]
    vocabulary: Path


def measure(task: Measuring) -> Mapping[str, Any]:
    """Returns the fields of `vocabulary_report.Fit`."""
    lines = [line for sample in task.samples for line in sample.lines(task.side)[:LINES]]
    vocabulary = Vocabulary.load(task.vocabulary)
    return dataclasses.asdict(fit_of(task.side, task.language, lines, vocabulary))


def _write(file: Path, lines: Sequence[str], hashes: np.ndarray) -> None:
    content = hashes.astype("<u8").tobytes() + "\n".join(lines).encode("utf-8", "surrogatepass")
    head = len(lines).to_bytes(8, "little")
    file.write_bytes(zstandard.ZstdCompressor(level=1).compress(head + content))


def _read(file: Path, limit: int) -> Candidates:
    content = zstandard.ZstdDecompressor().decompress(file.read_bytes())
    count = int.from_bytes(content[:8], "little")
    end = 8 + 8 * count
    lines = content[end:].decode("utf-8", "surrogatepass").split("\n") if count else []
    hashes = np.frombuffer(content, "<u8", count, 8).tolist()
    return Candidates(tuple(lines), tuple(hashes), limit)
