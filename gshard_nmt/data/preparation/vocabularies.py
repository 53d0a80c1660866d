"""The stages of the vocabularies: samples of the lines of each direction, and training.

sample      some chunks of a direction -> lines that a vocabulary may be trained on
vocabulary  a side                     -> a model file

A sample is bounded, at random, and the same for any split into chunks. Each line has a hash that depends
on the line and the seed alone. The sample of n lines is the n distinct lines with the smallest hashes. So
it needs one pass, and memory for n lines. The order of the lines, the number of chunks and the number of
workers do not matter: the smallest of the smallest lines of all chunks are the smallest lines of all.
"""

import bisect
import collections
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Part
from gshard_nmt.data.preparation.filtering import CleanText
from gshard_nmt.data.preparation.tokenizing import Direction, units_of
from gshard_nmt.data.preparation.work import Unit, WorkFolder
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.text import vocabulary
from gshard_nmt.data.text.vocabulary import Vocabulary, VocabularySpec, reserved_symbols, target_tag
from gshard_nmt.errors import UserError

Languages = Sequence[tuple[str, str]]
"""Source and target language of each direction of translation, as BCP 47 tags."""

_LARGEST_HASH = (1 << 64) - 1


def hashed(lines: Sequence[str], seed: str, largest: int = _LARGEST_HASH) -> dict[str, int]:
    """Returns the distinct lines with text whose hashes are at most `largest`, with these hashes."""
    key = hashlib.blake2b(seed.encode(), digest_size=16).digest()
    blake = hashlib.blake2b
    block = [line for line in lines if line and not line.isspace()]
    digests = b"".join([blake(line.encode(), digest_size=8, key=key).digest() for line in block])
    hashes = np.frombuffer(digests, "<u8")
    places = np.flatnonzero(hashes <= np.uint64(largest))
    chosen = zip(places.tolist(), hashes[places].tolist(), strict=True)
    return {block[place]: number for place, number in chosen}


def smallest(hashes: Mapping[str, int], limit: int) -> dict[str, int]:
    """Returns the `limit` lines with the smallest hashes, in the order of these."""
    # Two lines may have the same hash, so the line decides.
    ranked = sorted((number, line) for line, number in hashes.items())[:limit]
    return {line: number for number, line in ranked}


def text_seed(seed: int, side: str, source: str, target: str) -> str:
    """Returns the seed for one side of a direction.

    Two languages may have the same English lines. With the same seed, both samples would have the same
    lines of these, and their union would be small.
    """
    return f"{seed} {side} {source}-{target}"


def quotas(sizes: Sequence[int], limit: int, temperature: float) -> list[int]:
    """Returns the number of lines, at least 1, that each text may give to a sample of `limit` lines.

    A text with n lines has a share in proportion to n ** (1 / temperature). Lines are not repeated. So if
    a text has fewer lines than its share, the sample is smaller: no other language takes its share.
    """
    if not sizes:
        return []
    logs = np.log(np.maximum(sizes, 1)) / temperature
    rates = np.exp(logs - logs.max())
    rates /= rates.sum()

    def counts(lines: int) -> np.ndarray:
        return np.maximum((rates * lines).astype(np.int64), 1)

    # A text with a share below 1 gives a line all the same, so the other texts give a little less.
    largest = bisect.bisect_right(range(limit + 1), limit, key=lambda lines: counts(lines).sum())
    return counts(max(largest - 1, 0)).tolist()


@dataclasses.dataclass(frozen=True)
class Sample:
    """Lines of the text of a direction, at most `limit` of each side, as units of `sample` chose them."""

    limit: int
    folders: list[Path]

    def lines(self, side: str) -> list[str]:
        """Returns the lines of a side, in an order that is random but always the same."""
        together: dict[str, int] = {}
        for folder in self.folders:
            together |= json.loads((folder / f"{side}.json").read_bytes())
        return list(smallest(together, self.limit))


def sample_all(
    work: WorkFolder, config: Data, texts: Sequence[tuple[Direction, CleanText]]
) -> list[Sample]:
    """Chooses lines of training text for the vocabularies; one sample for all corpora of a direction."""
    rows: collections.Counter[tuple[str, str]] = collections.Counter()
    for d, text in texts:
        rows[d.source, d.target] += text.rows
    # A joint vocabulary takes half of its lines from each side.
    lines = config.vocabulary_sentences // len(_text_sides(config, "source"))
    limits = quotas([*rows.values()], lines, config.vocabulary_temperature)
    samples = {names: Sample(limit, []) for names, limit in zip(rows, limits, strict=True)}
    units = []
    for d, text in texts:
        languages = (d.source, d.target)
        call = functools.partial(
            sample,
            is_reversed=d.is_reversed,
            seeds=[text_seed(config.seed, side, *languages) for side in SIDES],
            limit=samples[languages].limit,
            total=rows[languages],
        )
        units.append(units_of(d.folder, call, text))
    done = work.run_groups("sample", "sampling lines for the vocabularies, pairs", units)
    for (d, _), outcomes in zip(texts, done, strict=True):
        samples[d.source, d.target].folders.extend(outcome.folder for outcome in outcomes)
    return [*samples.values()]


def sample(
    folder: Path,
    parts: Sequence[Part],
    is_reversed: bool,
    seeds: Sequence[str],
    limit: int,
    total: int,
) -> Mapping[str, Any]:
    """Writes the lines of each side of some chunks that may be among the `limit` lines of a direction.

    All units of the direction read `total` rows. Most units of a large text write few lines: a line is
    left out if its hash is so large that, as a rule, twice the limit of other lines have smaller hashes.
    """
    # The hashes are evenly distributed below 2**64.
    largest = min((2 * limit + 1000 << 64) // max(total, 1), _LARGEST_HASH)
    candidates: list[dict[str, int]] = [{} for _ in SIDES]
    for part in parts:
        chunk = chunks.read(part.file)
        sides = (chunk.sources, chunk.targets)
        for n, lines in enumerate(sides[::-1] if is_reversed else sides):
            candidates[n] |= hashed(lines, seeds[n], largest)
    for side, own in zip(SIDES, candidates, strict=True):
        (folder / f"{side}.json").write_text(json.dumps(smallest(own, limit)), encoding="utf-8")
    return {}


def train_all(
    work: WorkFolder, config: Data, samples: Sequence[Sample], languages: Languages
) -> dict[str, bytes]:
    """Returns the contents of the vocabularies by side. A joint one is that of both sides."""
    units = []
    for side, spec in specs_of(config, languages).items():
        sides = _text_sides(config, side)
        size = len(sides) * sum(sample.limit for sample in samples)
        call = functools.partial(train, side=side, sides=sides, samples=samples, spec=spec)
        units.append(Unit(side, call, size))
    done = work.run("vocabulary", "training the vocabularies, lines", units)
    models = [(o.folder / f"{u.name}.model").read_bytes() for o, u in zip(done, units, strict=True)]
    return {"source": models[0], "target": models[-1]}


def train(
    folder: Path, side: str, sides: Sequence[str], samples: Sequence[Sample], spec: VocabularySpec
) -> Mapping[str, Any]:
    chosen = (sample.lines(side) for side in sides for sample in samples)
    lines = list(dict.fromkeys(itertools.chain.from_iterable(chosen)))
    vocabulary.train_vocabulary(lines, spec, folder / f"{side}.model")
    return {}


def _text_sides(config: Data, side: str) -> tuple[str, ...]:
    return SIDES if config.vocabulary == "joint" else (side,)


def tags_of(config: Data, languages: Languages) -> tuple[str, ...]:
    """Returns the tags that source sentences may begin with: target and source languages, subsets."""
    tags: list[str] = []
    targets = {target for _, target in languages}
    if len(targets) > 1:
        tags += sorted(map(target_tag, targets))
    if config.language_tags:
        tags += sorted({vocabulary.source_tag(source) for source, _ in languages})
    return (*tags, *map(vocabulary.subset_tag, dict.fromkeys(config.subset_tags)))


def specs_of(config: Data, languages: Languages) -> dict[str, VocabularySpec]:
    """Returns each vocabulary to train, by side. A joint one has the side "source"."""
    is_joint = config.vocabulary == "joint"
    common = (config.vocabulary_model, config.character_coverage)
    source = VocabularySpec(
        config.source_vocabulary,
        *common,
        (*reserved_symbols(config.spare_tags), *tags_of(config, languages)),
        "identity" if is_joint else "nmt_nfkc",
    )
    if is_joint:
        return {"source": source}
    if config.romanize_source:
        # Few characters are left, so signs and digits would be among the rarest.
        coverage = 1 - (1 - config.character_coverage) / 10
        source = dataclasses.replace(source, coverage=coverage, normalization="latin")
    # The decoder writes text with all characters of the references.
    target = VocabularySpec(config.target_vocabulary, *common, reserved_symbols(), "identity")
    return {"source": source, "target": target}


def load_models(folder: Path) -> dict[str, Vocabulary]:
    """Returns the vocabularies of prepared data or of a run by side; UserError if one is not there."""
    for name in VOCABULARIES:
        if not (folder / name).is_file():
            raise UserError(
                f"--vocabulary_of {folder} has no {name}, so it is neither prepared data nor a run "
                "folder. Give a folder that gshard-data prepare, gshard-train or gshard-export made."
            )
    return dict(zip(SIDES, [Vocabulary.load(folder / name) for name in VOCABULARIES], strict=True))


def tagged_models(
    config: Data, models: Mapping[str, Vocabulary], folder: Path, languages: Languages
) -> dict[str, bytes]:
    """Returns the contents of existing vocabularies by side; spare tags get the names of missing ones.

    Raises:
      UserError: the source vocabulary has too few spare tags, or one vocabulary must be both and is not.
    """
    name = f"--vocabulary_of {folder}"
    if config.vocabulary == "joint" and models["source"].content != models["target"].content:
        raise UserError(
            f"{name} has two vocabularies, and Data.vocabulary is 'joint'. Set it to 'two'.",
            ["Data.vocabulary"],
        )
    # If translations begin with the tag of their language, sources need no tag of it.
    begun = {target_tag(target) for _, target in languages if models["target"].first(target)}
    tags = [tag for tag in tags_of(config, languages) if tag not in begun]
    source = vocabulary.with_tags(models["source"], tags, name).content
    target = source if config.vocabulary == "joint" else models["target"].content
    return {"source": source, "target": target}
