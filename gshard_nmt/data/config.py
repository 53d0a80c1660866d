"""What a run reads: which languages, which vocabularies, how sentences share rows."""

import dataclasses

from gshard_nmt.errors import UserError
from gshard_nmt.ranges import LARGEST_SIZE, above, at_least, between, check, one_of, size

DIRECTIONS = ("xx-en", "en-xx", "many-to-many")
VOCABULARY_MODELS = ("bpe", "unigram")
SMALLEST_VOCABULARY = 320
SMALLEST_LENGTH = 4


@dataclasses.dataclass(frozen=True)
class Data:
    """The data of a run, from a corpus folder to batches.

    Attributes:
      direction: "xx-en", "en-xx" or "many-to-many" (both directions of every pair), whatever the
        corpus names its folders.
      languages: BCP 47 tags of the languages to use, the other side of each pair; () = every one
        that has `minimum_pairs`. A run may use some of the languages that were prepared.
      minimum_pairs: training pairs that a language needs, where `languages` does not name it.
      maximum_languages: of those, as many evenly spaced by rank from most to fewest pairs, the
        first and the last included; 0 = all.
      maximum_pairs: training pairs prepared of each pair of languages, chosen evenly at random;
        0 = all.
      source_vocabulary, target_vocabulary: SentencePiece pieces; fewer where the text has no more.
      vocabulary_model: "bpe" or "unigram". At 8000 pieces BPE is ten times as fast to train and
        splits sentences into slightly fewer pieces.
      vocabulary_sentences: training pairs that the vocabularies are learnt from.
      vocabulary_temperature: T of the mixture of languages in them.
      character_coverage: share of the characters that get pieces of their own; others are spelled
        as UTF-8 bytes, so that no text is lost.
      language_tags: whether the source begins with a tag of its own language. GShard's model, many
        languages to English, has none. With several target languages the source always begins
        with a tag of the target.
      source_length, target_length: tokens in a row, and the most that an example may have, with its
        end and its tags; longer ones are left out by `prepare`.
      rows: B, rows of a batch, over all devices and processes.
      packing_window: examples among which each row finds those that fill it best; more fill rows
        better and make the saved state of the input larger.
      temperature: T of the mixture of languages: each is sampled in proportion to its number of
        examples to the power 1 / T (GShard section 4.1 uses the mixture of prior work, T = 5).
      seed: of the choice and the order of the examples.
    """

    direction: str = "xx-en"
    languages: tuple[str, ...] = ()
    minimum_pairs: int = 1
    maximum_languages: int = 0
    maximum_pairs: int = 0
    source_vocabulary: int = 8000
    target_vocabulary: int = 4000
    vocabulary_model: str = "bpe"
    vocabulary_sentences: int = 200_000
    vocabulary_temperature: float = 5.0
    character_coverage: float = 0.9995
    language_tags: bool = False
    source_length: int = 64
    target_length: int = 64
    rows: int = 64
    packing_window: int = 32
    temperature: float = 5.0
    seed: int = 1

    def __post_init__(self) -> None:
        check(
            self,
            one_of(DIRECTIONS, "direction"),
            one_of(VOCABULARY_MODELS, "vocabulary_model"),
            at_least(1, "minimum_pairs", "vocabulary_sentences"),
            at_least(0, "maximum_languages", "maximum_pairs"),
            between(SMALLEST_VOCABULARY, LARGEST_SIZE, "source_vocabulary", "target_vocabulary"),
            between(SMALLEST_LENGTH, LARGEST_SIZE, "source_length", "target_length"),
            size("rows", "packing_window"),
            # 1 samples languages as they are, 5 as usual for many of them, 100 almost evenly.
            above(0, "temperature", "vocabulary_temperature"),
            between(0.9, 1, "character_coverage"),
            at_least(0, "seed"),
        )
        repeated = sorted({x for x in self.languages if self.languages.count(x) > 1})
        if repeated:
            raise UserError(f"Data.languages names {', '.join(repeated)} twice.")

    def shaping(self) -> dict[str, object]:
        """The fields that decide what `prepare` writes, as JSON holds them."""
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k not in _TRAINING_ONLY}
        return fields | {"languages": list(self.languages)}


_TRAINING_ONLY = ("rows", "packing_window", "temperature")
