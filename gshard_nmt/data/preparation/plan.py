"""What is to be made of a corpus, and the keys that say whether it has been made already."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.data.batching.shuffle import permute
from gshard_nmt.data.cleaning import registry
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.chunks import Part
from gshard_nmt.data.preparation.inputs import Text, fingerprint_of, name_of
from gshard_nmt.data.preparation.vocabulary_specs import existing_models, specs_of
from gshard_nmt.data.preparation.work import key_of
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair
from gshard_nmt.data.sets.directions import directions_of
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.sets.manifest import pair_folder
from gshard_nmt.data.text.romanization import rules
from gshard_nmt.data.text.vocabulary import vocabulary_of

_CLEAN_VERSION = 3
"""Changes whenever cleaning leaves other rows of the same text."""

_SHARD_VERSION = 1
"""Changes whenever the same text would give other shards."""

Models = dict[str, bytes]
"""The contents of the vocabularies by side."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A choice of `limit` rows (0 is all) of `total`, evenly at random, that needs no memory."""

    limit: int = 0
    total: int = 0
    seed: int = 0

    def places(self, first: int, count: int) -> np.ndarray:
        """Returns which of `count` rows after row `first` are chosen: int64[n], from 0, sorted."""
        if not self.limit or self.limit >= self.total:
            return np.arange(count)
        rows = np.arange(first, first + count)
        key = np.random.SeedSequence(self.seed).generate_state(1, np.uint64)
        return np.flatnonzero(permute(rows, self.total, key) < self.limit)


@dataclasses.dataclass(frozen=True)
class SplitText:
    """The text of a split of a language pair in one corpus: the rows of each input."""

    pair: CorpusPair
    split: str
    texts: tuple[Text, ...]

    @property
    def name(self) -> str:
        """The name of the split in the names of units, such as "fr-en/train"."""
        return f"{folder_of(self.pair)}/{self.split}"

    @property
    def total(self) -> int:
        return sum(text.total for text in self.texts)

    @property
    def key(self) -> str:
        return key_of([text.digest for text in self.texts])

    @property
    def parts(self) -> list[Part]:
        return [part for text in self.texts for part in text.parts]


@dataclasses.dataclass(frozen=True)
class LanguageText:
    """The training text, and the dev and test text, of a pair in all corpora, the main one first."""

    train: tuple[SplitText, ...]
    held_out: tuple[SplitText, ...]

    @property
    def names(self) -> list[str]:
        return [folder_of(text.pair) for text in self.train]


@dataclasses.dataclass(frozen=True)
class Direction:
    """A direction of translation: a pair of the corpus with its source and target language."""

    pair: CorpusPair
    source: str
    target: str

    @property
    def is_reversed(self) -> bool:
        return (self.source, self.target) != (self.pair.source, self.pair.target)

    @property
    def folder(self) -> str:
        return pair_folder(self.source, self.target, self.pair.subset)


def folder_of(pair: CorpusPair) -> str:
    """Returns a name for a language pair of a corpus, such as "fr-en" or "fr-en.back"."""
    return pair_folder(pair.source, pair.target, pair.subset)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be made of the text of a corpus.

    `texts` has the text of each input by its name. `notes` are sentences without full stops about
    languages that are too small.
    """

    config: Data
    cleaning: Cleaning
    pairs: Sequence[CorpusPair]
    texts: Mapping[str, Text]
    notes: Sequence[str] = ()

    @property
    def directions(self) -> list[Direction]:
        return [
            Direction(pair, source, target)
            for pair in self.pairs
            for source, target in directions_of(self.config.direction, pair.source, pair.target)
        ]

    @property
    def languages_of_directions(self) -> list[tuple[str, str]]:
        return [(direction.source, direction.target) for direction in self.directions]

    @functools.cached_property
    def cleaning_identity(self) -> Mapping[str, Any]:
        return registry.identity(self.cleaning)

    def text(self, pair: CorpusPair, split: str) -> SplitText:
        texts = (self.texts[name_of(item)] for item in pair.inputs(split))
        return SplitText(pair, split, tuple(texts))

    def languages(self) -> list[LanguageText]:
        """Returns the text of each pair of languages in all corpora."""
        # The same two languages have the same order in all corpora; see `directions.joined`.
        pairs: dict[tuple[str, str], list[CorpusPair]] = {}
        for pair in self.pairs:
            pairs.setdefault((pair.source, pair.target), []).append(pair)
        texts = []
        for own in pairs.values():
            held_out = [self.text(pair, split) for split in ("dev", "test") for pair in own]
            # A corpus without dev and test text must not change the keys of another one.
            present = tuple(text for text in held_out if text.texts)
            texts.append(LanguageText(tuple(self.text(pair, "train") for pair in own), present))
        return texts

    def choice(self, text: SplitText) -> Choice:
        limit = self.config.maximum_pairs
        # Without a limit, neither the seed nor other files change the rows.
        return Choice(limit, text.total, self.config.seed) if limit else Choice()

    def facts(self) -> dict[str, Any]:
        """Returns the keys of the manifest that identify the text and the settings."""
        digests: dict[str, list[tuple[CorpusPair, str, str]]] = {"": []}
        for pair in self.pairs:
            for split in SPLITS:
                own = digests.setdefault(pair.subset, [])
                own += [(pair, split, text.digest) for text in self.text(pair, split).texts]
        prints = {subset: fingerprint_of(own) for subset, own in digests.items()}
        facts = {"corpus_fingerprint": prints.pop(""), "data": self.config.shaping()}
        return facts | ({"subset_fingerprints": prints} if prints else {})

    @functools.cached_property
    def text_keys(self) -> dict[str, str]:
        """The key of the clean training text of each pair, by `folder_of`.

        Duplicates of earlier text are dropped, so a key depends on all text up to the pair.
        """
        keys = {}
        for languages in self.languages():
            held_out = [text.key for text in languages.held_out]
            before: list[str] = []
            for text in languages.train:
                pair, choice = text.pair, dataclasses.astuple(self.choice(text))
                names = (pair.source, pair.target, pair.subset)
                facts = (text.key, choice, names, held_out, self.cleaning_identity)
                before.append(key_of(_CLEAN_VERSION, *facts))
                # Without duplicates to drop, no other text matters.
                own = before if self.cleaning.duplicates else before[-1:]
                keys[folder_of(pair)] = key_of(_CLEAN_VERSION, own)
        return keys

    def keys(self, models: Models) -> dict[str, str]:
        """Returns `vocabulary_key`, and the key of the shards of each direction by its folder."""
        vocabularies = [vocabulary_of(models[side]) for side in SIDES]
        lengths = (self.config.source_length, self.config.target_length)
        keys = {"vocabulary": self.vocabulary_key}
        for d in self.directions:
            texts = [
                self.text_keys[folder_of(d.pair)],
                key_of(_CLEAN_VERSION, self.text(d.pair, "dev").key),
                self.text(d.pair, "test").key,
            ]
            names = (d.source, d.target, d.pair.subset)
            encodings = [v.encoding_key(*names) for v in vocabularies]
            facts = (d.is_reversed, names, texts, lengths, encodings)
            keys[d.folder] = key_of(_SHARD_VERSION, *facts)
        return keys

    @functools.cached_property
    def vocabulary_key(self) -> str:
        """The key of vocabularies that are trained on this text, or are existing files."""
        config = self.config
        specs = specs_of(config, self.languages_of_directions)
        settings = (config.vocabulary_sentences, config.vocabulary_temperature, config.seed)
        names = [direction.folder for direction in self.directions]
        text = (settings, names, self.text_keys) if specs else names
        fields = {side: dataclasses.astuple(spec) for side, spec in specs.items()}
        if any(spec.normalization == "latin" for spec in specs.values()):
            # They come from a package and from Unicode, whose versions differ.
            fields["rules"] = (hashlib.sha256(rules().encode()).hexdigest(),)
        return key_of(config.vocabulary, fields, existing_models(config), text)
