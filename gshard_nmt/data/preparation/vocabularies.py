"""The stages of the vocabularies: samples of the lines of each direction, training, and a report.

sample      some chunks of a direction -> lines that a vocabulary may be trained on
vocabulary  a side                     -> a model file
tokenize    a language of a side       -> how well the vocabulary fits it (beside `tokenizing.py`)

A sample is bounded, at random, and the same for any split into chunks. Each line has a hash that depends
on the line and the seed alone. The sample of n lines is the n distinct lines with the smallest hashes. So
it needs one pass, and memory for n lines. The order of the lines, the number of chunks and the number of
workers do not matter: the smallest of the smallest lines of all chunks are the smallest lines of all.
"""

import bisect
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from gshard_nmt.data.batching.mixture import sampling_rates
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.chunks import Part, groups
from gshard_nmt.data.preparation.filtering import CleanText
from gshard_nmt.data.preparation.plan import Direction
from gshard_nmt.data.preparation.vocabulary_specs import text_sides
from gshard_nmt.data.preparation.work import Unit, WorkFolder
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.text.vocabulary import Vocabulary, VocabularySpec, train_vocabulary
from gshard_nmt.data.text.vocabulary_report import LINES, fit_of

_REPORT_CHUNKS = 8
"""The largest number of chunks of a direction that are read for the report about the vocabularies."""


class Sampler:
    """The lines with the smallest hashes. Different texts need different seeds, see `text_seed`."""

    def __init__(self, limit: int, seed: int | str) -> None:
        self._limit = limit
        self._key = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()
        self._hashes: dict[str, int] = {}
        self._threshold = (1 << 64) - 1

    def add(self, lines: Iterable[str]) -> None:
        block = [line for line in lines if line and not line.isspace()]
        blake, key = hashlib.blake2b, self._key
        digests = b"".join(
            [blake(line.encode(), digest_size=8, key=key).digest() for line in block]
        )
        hashes = np.frombuffer(digests, "<u8")
        # After the first blocks, this comparison rejects almost every line.
        places = np.flatnonzero(hashes <= np.uint64(self._threshold)).tolist()
        self.add_hashed([block[place] for place in places], hashes[places].tolist())

    def add_hashed(self, lines: Iterable[str], hashes: Iterable[int]) -> None:
        self._hashes.update(zip(lines, hashes, strict=True))
        if len(self._hashes) > 2 * self._limit:
            self._shrink()

    def candidates(self) -> dict[str, int]:
        """Returns the distinct lines with their hashes, in the order of these: at most `limit`."""
        self._shrink()
        return self._hashes

    def _shrink(self) -> None:
        # Two lines may have the same hash, so the line decides.
        ranked = sorted((number, line) for line, number in self._hashes.items())[: self._limit]
        self._hashes = {line: number for number, line in ranked}
        if len(ranked) == self._limit and ranked:
            self._threshold = ranked[-1][0]


def merge(candidates: Iterable[Mapping[str, int]], limit: int) -> dict[str, int]:
    """Returns the `limit` smallest lines of blocks, in any order, that were sampled with one seed."""
    sampler = Sampler(limit, "")
    for block in candidates:
        sampler.add_hashed(block, block.values())
    return sampler.candidates()


def text_seed(seed: int, side: str, source: str, target: str) -> str:
    """Returns the seed for one side of a direction.

    Two languages may have the same English lines. With the same seed, both samples would have the same
    lines of these, and their union would be small.
    """
    return f"{seed} {side} {source}-{target}"


def quotas(sizes: Mapping[str, int], limit: int, temperature: float) -> dict[str, int]:
    """Returns the number of lines, at least 1, that each text may give to a sample of `limit` lines.

    A text with n lines has a share in proportion to n ** (1 / temperature). Lines are not repeated. So if
    a text has fewer lines than its share, the sample is smaller: no other language takes its share.
    """
    if not sizes:
        return {}
    rates = sampling_rates([max(size, 1) for size in sizes.values()], temperature)

    def counts(lines: int) -> dict[str, int]:
        pairs = zip(sizes, rates.tolist(), strict=True)
        return {name: max(1, int(rate * lines)) for name, rate in pairs}

    # A text with a share below 1 gives a line all the same, so the other texts give a little less.
    largest = bisect.bisect_right(
        range(limit + 1), limit, key=lambda lines: sum(counts(lines).values())
    )
    return counts(max(largest - 1, 0))


@dataclasses.dataclass(frozen=True)
class Sample:
    """Lines of the text of a direction, at most `limit` of each side, as units of `sample` chose them."""

    source: str
    target: str
    limit: int
    folders: tuple[Path, ...]

    def lines(self, side: str) -> tuple[str, ...]:
        """Returns the lines of a side, in an order that is random but always the same."""
        return tuple(merge((_read(folder / side) for folder in self.folders), self.limit))


def sample_all(
    work: WorkFolder,
    config: Data,
    texts: Sequence[tuple[Direction, CleanText]],
    is_for_training: bool,
) -> list[Sample]:
    """Chooses lines of training text for the vocabularies, or fewer for a report about them."""
    if is_for_training:
        every = [groups(text.parts) for _, text in texts]
    else:  # a few chunks at equal distances
        chunks = [[part for part in text.parts if part.rows] for _, text in texts]
        every = [
            [(part,) for part in own[:: -(-len(own) // _REPORT_CHUNKS) or 1]] for own in chunks
        ]
    rows: dict[tuple[str, str], int] = {}
    for (direction, _), own in zip(texts, every, strict=True):
        languages = (direction.source, direction.target)
        rows[languages] = rows.get(languages, 0) + sum(map(_rows, own))
    limits = dict.fromkeys(map("-".join, rows), LINES)
    if is_for_training:
        sizes = {"-".join(languages): count for languages, count in rows.items()}
        # A joint vocabulary takes half of its lines from each side.
        lines = config.vocabulary_sentences // len(text_sides(config, "source"))
        limits = quotas(sizes, lines, config.vocabulary_temperature)
    units = []
    for (direction, _), own in zip(texts, every, strict=True):
        languages = (direction.source, direction.target)
        stride = 1 if is_for_training else max(1, rows[languages] // LINES)
        bounds = (limits["-".join(languages)], rows[languages] // stride, config.seed)
        for number, parts in enumerate(own):
            task = Sampling(parts, direction.is_reversed, *languages, *bounds, stride)
            units.append(Unit(f"{direction.folder}/{number}", task, _rows(parts)))
    about = "sampling lines for the vocabularies, pairs"
    folders: dict[tuple[str, str], list[Path]] = {languages: [] for languages in rows}
    for unit, outcome in zip(units, work.run("sample", about, sample, units), strict=True):
        folders[unit.task.source, unit.task.target].append(outcome.folder)
    return [Sample(*names, limits["-".join(names)], tuple(own)) for names, own in folders.items()]


def _rows(parts: Sequence[Part]) -> int:
    return sum(part.rows for part in parts)


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Some cleaned chunks of a direction, and the number of lines to choose from its whole text.

    All units of the direction read `total` rows. With a stride of n they read every n-th, enough for a
    report.
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
        hashes = np.array(list(chosen.values()), np.uint64)
        number = int(np.searchsorted(hashes, np.array(largest, np.uint64), side="right"))
        _write(folder / side, list(chosen)[:number], hashes[:number])
        counts[side] = number
    return {"lines": counts}


def train_all(
    work: WorkFolder, config: Data, samples: Sequence[Sample], specs: Mapping[str, VocabularySpec]
) -> dict[str, bytes]:
    units = []
    for side, spec in specs.items():
        sides = text_sides(config, side)
        size = len(sides) * sum(sample.limit for sample in samples)
        units.append(Unit(side, Training(side, sides, tuple(samples), spec), size))
    about = "training the vocabularies, lines"
    outcomes = zip(units, work.run("vocabulary", about, train, units), strict=True)
    return {unit.name: (o.folder / f"{unit.name}.model").read_bytes() for unit, o in outcomes}


@dataclasses.dataclass(frozen=True)
class Training:
    """The side that names the file, the sides of text, and the lines."""

    side: str
    text: tuple[str, ...]
    samples: tuple[Sample, ...]
    spec: VocabularySpec


def train(task: Training, folder: Path) -> Mapping[str, Any]:
    chosen = (sample.lines(side) for side in task.text for sample in task.samples)
    lines = list(dict.fromkeys(itertools.chain.from_iterable(chosen)))
    vocabulary = train_vocabulary(lines, task.spec, folder / f"{task.side}.model")
    return {"lines": len(lines), "size": vocabulary.size}


@dataclasses.dataclass(frozen=True)
class Measuring:
    """How well the vocabulary of a side fits a language, on lines of both."""

    side: str
    language: str
    samples: tuple[Sample, ...]
    vocabulary: Path


def measuring_units(samples: Sequence[Sample], models: Mapping[str, Path]) -> list[Unit]:
    units = []
    for side, model in models.items():
        by_language: dict[str, list[Sample]] = {}
        for own in samples:
            by_language.setdefault(getattr(own, side), []).append(own)
        for language, some in by_language.items():
            units.append(
                Unit(f"{side}/{language}", Measuring(side, language, tuple(some), model), 0)
            )
    return units


def measure(task: Measuring) -> Mapping[str, Any]:
    lines = [line for sample in task.samples for line in sample.lines(task.side)[:LINES]]
    vocabulary = Vocabulary.load(task.vocabulary)
    return dataclasses.asdict(fit_of(task.side, task.language, lines, vocabulary))


def _write(file: Path, lines: Sequence[str], hashes: np.ndarray) -> None:
    content = hashes.astype("<u8").tobytes() + "\n".join(lines).encode("utf-8", "surrogatepass")
    head = len(lines).to_bytes(8, "little")
    file.write_bytes(zstandard.ZstdCompressor(level=1).compress(head + content))


def _read(file: Path) -> dict[str, int]:
    content = zstandard.ZstdDecompressor().decompress(file.read_bytes())
    count = int.from_bytes(content[:8], "little")
    end = 8 + 8 * count
    lines = content[end:].decode("utf-8", "surrogatepass").split("\n") if count else []
    hashes = np.frombuffer(content, "<u8", count, 8).tolist()
    return dict(zip(lines, hashes, strict=True))
