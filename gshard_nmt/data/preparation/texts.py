"""The text of a language pair in all corpora, and the keys of what is made from it."""

import dataclasses
from collections.abc import Mapping, Sequence

from gshard_nmt.data.preparation.inputs import Text, name_of
from gshard_nmt.data.preparation.work import key_of
from gshard_nmt.data.sets.corpus import CorpusPair, Input
from gshard_nmt.data.sets.manifest import pair_folder

_VERSION = 1
"""Changes whenever the same text would give other shards."""


@dataclasses.dataclass(frozen=True)
class SplitText:
    """The inputs of a split of a language pair in one corpus, in their order.

    Attributes:
      pair: the language pair, of the main corpus or of a subset.
      split: "train", "dev" or "test".
      inputs: the inputs.
      texts: what is known of the rows of each input.
    """

    pair: CorpusPair
    split: str
    inputs: tuple[Input, ...]
    texts: tuple[Text, ...]

    @classmethod
    def of(cls, pair: CorpusPair, split: str, texts: Mapping[str, Text]) -> "SplitText":
        """Returns the text of a split; `texts` has the text of each input by its name."""
        inputs = pair.inputs(split)
        return cls(pair, split, inputs, tuple(texts[name_of(item)] for item in inputs))

    @property
    def name(self) -> str:
        """The name of the split in messages and in the names of units, such as "fr-en/train"."""
        return f"{folder_of(self.pair)}/{self.split}"

    @property
    def total(self) -> int:
        """The number of rows."""
        return sum(text.total for text in self.texts)

    @property
    def key(self) -> str:
        """Identifies the rows and their order."""
        return key_of([text.digest for text in self.texts])


@dataclasses.dataclass(frozen=True)
class Direction:
    """A direction of translation: a pair of the corpus with its source and target language."""

    pair: CorpusPair
    source: str
    target: str

    @property
    def is_reversed(self) -> bool:
        """Whether the second language of the pair is the source."""
        return (self.source, self.target) != (self.pair.source, self.pair.target)

    @property
    def folder(self) -> str:
        """The name of its folder in the prepared data."""
        return pair_folder(self.source, self.target, self.pair.subset)

    def key(self, texts: Sequence[str], lengths: Sequence[int], vocabularies: Sequence[str]) -> str:
        """Returns the key of its shards.

        Args:
          texts: the keys of what was made of the text of each split.
          lengths: the limits of source and target tokens.
          vocabularies: `Vocabulary.encoding_key` of both vocabularies.
        """
        languages = (self.source, self.target, self.pair.subset)
        return key_of(_VERSION, self.is_reversed, languages, texts, lengths, vocabularies)


def folder_of(pair: CorpusPair) -> str:
    """Returns a name for a language pair of a corpus, such as "fr-en" or "fr-en.back"."""
    return pair_folder(pair.source, pair.target, pair.subset)


@dataclasses.dataclass(frozen=True)
class LanguageText:
    """The text of a language pair in all corpora, the main corpus first.

    Attributes:
      train: the training text of each corpus, in the same order of languages.
      held_out: dev and test text of all corpora. No training pair may be in it.
    """

    train: tuple[SplitText, ...]
    held_out: tuple[SplitText, ...]

    @classmethod
    def of(cls, pairs: Sequence[CorpusPair], texts: Mapping[str, Text]) -> "LanguageText":
        """Returns the text of these pairs, which have the same languages."""
        held_out = [SplitText.of(pair, split, texts) for split in ("dev", "test") for pair in pairs]
        # A corpus without dev and test text must not change the keys of another one.
        present = tuple(text for text in held_out if text.inputs)
        return cls(tuple(SplitText.of(pair, "train", texts) for pair in pairs), present)

    @property
    def pairs(self) -> list[CorpusPair]:
        """The language pair in each corpus."""
        return [text.pair for text in self.train]
