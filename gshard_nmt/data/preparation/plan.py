"""What is to be made of a corpus, and the keys that say whether it has been made already."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation import inputs
from gshard_nmt.data.preparation.cleaning import Cleaner
from gshard_nmt.data.preparation.inputs import Text
from gshard_nmt.data.preparation.texts import Direction, LanguageText, SplitText, folder_of
from gshard_nmt.data.preparation.work import key_of
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair
from gshard_nmt.data.sets.directions import directions_of
from gshard_nmt.data.text.romanization import rules
from gshard_nmt.data.text.vocabulary import vocabulary_of
from gshard_nmt.data.text.vocabulary_pair import SIDES, existing_models, specs_of

Models = dict[str, bytes]
"""The contents of the vocabularies by side."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is to be made of the text of a corpus.

    Attributes:
      config: the settings.
      pairs: the language pairs, in their order.
      texts: the text of each input, by its name.
      notes: the languages that are not in `pairs` because they are too small, as sentences without
        their full stops.
    """

    config: Data
    pairs: Sequence[CorpusPair]
    texts: Mapping[str, Text]
    notes: Sequence[str] = ()

    @property
    def directions(self) -> list[Direction]:
        """The directions of translation."""
        return [
            Direction(pair, source, target)
            for pair in self.pairs
            for source, target in directions_of(self.config.direction, pair.source, pair.target)
        ]

    def text(self, pair: CorpusPair, split: str) -> SplitText:
        """Returns the text of a split."""
        return SplitText.of(pair, split, self.texts)

    def facts(self) -> dict[str, Any]:
        """Returns the keys of the manifest that identify the text and the settings."""
        digests: dict[str, list[tuple[CorpusPair, str, str]]] = {"": []}
        for pair in self.pairs:
            for split in SPLITS:
                own = digests.setdefault(pair.subset, [])
                own += [(pair, split, text.digest) for text in self.text(pair, split).texts]
        prints = {subset: inputs.fingerprint_of(own) for subset, own in digests.items()}
        facts = {"corpus_fingerprint": prints.pop(""), "data": self.config.shaping()}
        return facts | ({"subset_fingerprints": prints} if prints else {})

    def languages(self) -> list[LanguageText]:
        """Returns the text of each pair of languages in all corpora."""
        # The same two languages have the same order in all corpora; see `directions.joined`.
        pairs: dict[tuple[str, str], list[CorpusPair]] = {}
        for pair in self.pairs:
            pairs.setdefault((pair.source, pair.target), []).append(pair)
        return [LanguageText.of(own, self.texts) for own in pairs.values()]

    def text_keys(self, cleaner: Cleaner) -> dict[str, str]:
        """Returns the key of the clean training text of each pair, by `texts.folder_of`."""
        return {
            folder_of(pair): cleaner.key(languages, folder_of(pair))
            for languages in self.languages()
            for pair in languages.pairs
        }

    def languages_of_directions(self) -> list[tuple[str, str]]:
        """Returns the languages of each direction."""
        return [(direction.source, direction.target) for direction in self.directions]

    def vocabulary_key(self, cleaner: Cleaner) -> str:
        """Returns the key of vocabularies that are trained on this text, or are existing files."""
        config = self.config
        specs = specs_of(config, self.languages_of_directions())
        settings = (config.vocabulary_sentences, config.vocabulary_temperature, config.seed)
        names = [direction.folder for direction in self.directions]
        text = (settings, names, self.text_keys(cleaner)) if specs else names
        fields = {side: dataclasses.astuple(spec) for side, spec in specs.items()}
        if any(spec.normalization == "latin" for spec in specs.values()):
            # They come from a package and from Unicode, whose versions differ.
            fields["rules"] = (hashlib.sha256(rules().encode()).hexdigest(),)
        return key_of(config.vocabulary, fields, existing_models(config), text)

    def direction_keys(self, cleaner: Cleaner, models: Models) -> dict[str, str]:
        """Returns the key of the shards of each direction by its folder, for these vocabularies."""
        vocabularies = [vocabulary_of(models[side]) for side in SIDES]
        lengths = (self.config.source_length, self.config.target_length)
        train = self.text_keys(cleaner)
        keys = {}
        for d in self.directions:
            texts = [
                train[folder_of(d.pair)],
                cleaner.dev_key(self.text(d.pair, "dev")),
                self.text(d.pair, "test").key,
            ]
            encodings = [v.encoding_key(d.source, d.target, d.pair.subset) for v in vocabularies]
            keys[d.folder] = d.key(texts, lengths, encodings)
        return keys
