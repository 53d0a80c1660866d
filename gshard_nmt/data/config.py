"""The settings of data: languages, vocabularies, and how sentences are packed into batches."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from gshard_nmt.data.language_codes import same
from gshard_nmt.data.reading.layout import ENGLISH
from gshard_nmt.data.schedule import Phase, in_run, phases_of
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.ranges import LARGEST_SIZE, Rule, above, at_least, between, check, matching, one_of

DIRECTIONS = ("xx-en", "en-xx", "many-to-many", "all", "as-named")
VOCABULARIES = ("two", "joint")
VOCABULARY_MODELS = ("bpe", "unigram")
AUGMENTATIONS = (
    *("numbers", "values", "emoji", "typos", "first_letter", "title", "capitals"),
    *("placeholders", "copies"),  # the last ones, because they need the text as it will be
)
"""The variations of `text/variations.py`, in the order in which a sentence pair gets several of them."""
SMALLEST_VOCABULARY = 320
LARGEST_SPARE_TAGS = 1000
SMALLEST_LENGTH = 4


@dataclasses.dataclass(frozen=True)
class Data:
    """The data of a run: the text that `gshard-data prepare` uses, and the batches made from it."""

    # Languages
    direction: str = "xx-en"
    """"xx-en" translates into English, "en-xx" from English, "many-to-many" in both directions. The
    order of the languages in the folder names of the corpus does not matter, and pairs without English
    are left out. "all" translates in both directions of every pair of the corpus, also without English,
    such as fr-de. "as-named" translates from the first to the second language of each folder's name."""

    languages: tuple[str, ...] = ()
    """BCP 47 tags of the languages to use, without English, such as ["de", "pt-BR"]. An empty list
    means every language that has `minimum_pairs`. A pair without English is used if both its languages
    are named, or if its own name is, as in ["fr-de"]. A training run may use some of the prepared
    languages."""

    minimum_pairs: int = 1
    """A language is prepared only if it has at least this number of training pairs before cleaning. Not
    used if `languages` names the languages."""

    maximum_languages: int = 0
    """The number of languages to prepare, if more have `minimum_pairs`; 0 means all. The languages
    are ranked by training pairs and taken at equal distances in this list, from the largest to the
    smallest. Not used if `languages` names the languages."""

    # Vocabularies
    vocabulary: str = "two"
    """"two" learns a vocabulary for the source and another for the target, "joint" learns one from the
    text of both sides. With "joint", the two files are equal, and `source_vocabulary` and
    `target_vocabulary` must be equal. The embeddings of source and target stay separate."""

    source_vocabulary: int = 8000
    """The number of SentencePiece pieces of the source. A small corpus may give fewer."""

    target_vocabulary: int = 4000
    """The number of SentencePiece pieces of the target. A small corpus may give fewer."""

    vocabulary_model: str = "bpe"
    """The algorithm of SentencePiece. With 8,000 pieces, BPE trains ten times as fast as unigram and
    needs slightly fewer tokens for a sentence."""

    vocabulary_sentences: int = 200_000
    """The largest number of training sentences that a vocabulary is learned from, in all languages
    together. Half of the sentences of a "joint" vocabulary are from each side. They are distinct lines,
    drawn evenly from the whole text of each language by `seed`."""

    vocabulary_temperature: float = 5.0
    """The sampling temperature of the languages in these sentences; see `temperature`."""

    character_coverage: float = 0.9995
    """The fraction of the characters in the text that get pieces of their own. Rarer characters become
    bytes of UTF-8 (byte fallback), so no text is lost."""

    romanize_source: bool = False
    """Whether a new source vocabulary writes letters of all scripts in ASCII, so that related languages
    with other scripts share pieces. Chinese, Japanese and Korean stay. The rules are in the vocabulary,
    so text to translate needs no preparation. A "joint" vocabulary cannot have them, and one that
    exists keeps its own."""

    spare_tags: int = 8
    """The number of symbols that a new source vocabulary keeps for the tags of later languages. A symbol
    cannot be added to the vocabulary of a trained model."""

    subset_tags: tuple[str, ...] = ()
    """The names of the subsets of the corpus whose source sentences begin with a tag, such as ["back"]
    for back-translated text (Caswell et al. 2019). Text to translate has no such tag."""

    language_tags: bool = False
    """Whether each source sentence begins with a tag of its own language. Many-to-English models such
    as GShard's need no tag. With several target languages, the source always begins with a tag of the
    target language, whatever this setting says."""

    # Batches
    source_length: int = 64
    """L of the encoder: tokens in a row of the source, and the limit of one sentence with its tags and
    EOS. `prepare` leaves out longer examples."""

    target_length: int = 64
    """L of the decoder: tokens in a row of the target, and the limit of one sentence with its EOS.
    `prepare` leaves out longer examples."""

    rows: int = 64
    """B, the batch size in rows, over all devices and processes. Each row holds several sentences."""

    packing_window: int = 32
    """Examples are packed together in blocks of this number for each row. A larger window leaves less
    padding, but a run takes longer to start, and a new phase of `schedule` takes more steps to reach all
    rows: window divided by examples in a row."""

    temperature: float = 5.0
    """The sampling temperature of the languages. Training draws a language with n examples in
    proportion to n ** (1 / temperature): 1 keeps the sizes of the corpus, 5 draws small languages more
    often, 100 draws all almost equally."""

    subword_sampling: float = 0.0
    """How much the splits of words vary in training; 0 always takes the best split. For a "bpe" model
    it is the probability that a merge is left out, such as 0.1 (BPE dropout, Provilkov et al. 2020).
    For a "unigram" model it is alpha: a split is drawn in proportion to its probability to the power
    of alpha, such as 0.2 (Kudo 2018, section 3.2). A smaller alpha varies more."""

    subword_sampling_target: bool = False
    """Whether `subword_sampling` also varies the words of the target."""

    augmentation: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """How often training changes a sentence pair to what people type, such as {"capitals": 0.02}; {}
    never does. On both sides alike: "capitals", "title" and "first_letter" change the case, "emoji" and
    "values" add emoji, symbols, addresses, placeholders and other codes, and "numbers" changes digits.
    "typos" makes typing errors in the source. "placeholders" lets the symbol <ph> stand for placeholders,
    tags, addresses and the like in lines that have some, and "copies" for a word that both sides have.
    Each has a rate from 0 to 1."""

    schedule: tuple[Mapping[str, float | Mapping[str, float]], ...] = ()
    """Changes of the mixture while a run trains. Each entry is a dict: from `from_step` on, the
    languages are drawn with `temperature` and with `weights`, a dict from languages, directions such as
    "fr-en" and subsets to factors; what it does not name has 1. A `from_step` below 1 is a share
    of `Train.steps`. Until the first entry, and by default, `Data.temperature` holds."""

    seed: int = 1
    """The seed of the sample for the vocabularies and of the order of the training examples."""

    RULES: ClassVar[Sequence[Rule]] = (
        one_of(DIRECTIONS, "direction"),
        one_of(VOCABULARIES, "vocabulary"),
        one_of(VOCABULARY_MODELS, "vocabulary_model"),
        at_least(1, "minimum_pairs", "vocabulary_sentences"),
        at_least(0, "maximum_languages", "seed"),
        between(0, LARGEST_SPARE_TAGS, "spare_tags"),
        matching("[A-Za-z0-9_-]+", "a name of letters, digits, - and _", "subset_tags"),
        between(SMALLEST_VOCABULARY, LARGEST_SIZE, "source_vocabulary", "target_vocabulary"),
        between(SMALLEST_LENGTH, LARGEST_SIZE, "source_length", "target_length"),
        between(1, LARGEST_SIZE, "rows", "packing_window"),
        above(0, "temperature", "vocabulary_temperature"),
        between(0.9, 1, "character_coverage"),
        between(0, 1, "subword_sampling"),
    )

    def __post_init__(self) -> None:
        check(self, self.RULES)
        setting = ["Data.augmentation"]
        for name, rate in self.augmentation.items():
            if name not in AUGMENTATIONS:
                raise UserError(
                    f"Data.augmentation has {name!r}{did_you_mean(name, AUGMENTATIONS)} It may have "
                    f"{', '.join(AUGMENTATIONS)}.",
                    setting,
                )
            if not 0 <= rate <= 1:
                message = f"Data.augmentation[{name!r}] is {rate}; it must be from 0 to 1."
                raise UserError(message, setting)
        # An error in the schedule is found here, before any work.
        phases_of(self.schedule, self.temperature)
        sizes = self.source_vocabulary, self.target_vocabulary
        if self.vocabulary == "joint" and sizes[0] != sizes[1]:
            raise UserError(
                f"Data.source_vocabulary is {sizes[0]} and Data.target_vocabulary is {sizes[1]}, but "
                "Data.vocabulary = 'joint' makes one vocabulary for both. Give both the same number.",
                ["Data.vocabulary", "Data.source_vocabulary", "Data.target_vocabulary"],
            )
        if self.romanize_source and self.vocabulary == "joint":
            raise UserError(
                "Data.romanize_source is True and Data.vocabulary is 'joint', but a target keeps its "
                "script. Set Data.romanize_source = False or Data.vocabulary = 'two'.",
                ["Data.romanize_source", "Data.vocabulary"],
            )

    def in_run(self, steps: int) -> "Data":
        """Returns the settings of a run of `steps` steps, in which no phase begins at a share of it."""
        return dataclasses.replace(self, schedule=in_run(self.schedule, steps))

    @property
    def batch_tokens(self) -> int:
        """The most tokens that a batch can have, of both sides."""
        return self.rows * (self.source_length + self.target_length)

    def uses(self, source: str, target: str, name: str) -> bool:
        """Returns whether `languages` names a pair: by its name, or by all its languages but English.

        ["fr", "de"] names fr-en, de-en and fr-de; ["fr-de"] names fr-de alone. An empty list names all.
        """
        if not self.languages or self.place_of(name) is not None:
            return True
        return all(self.place_of(tag) is not None for tag in (source, target) if tag != ENGLISH)

    def place_of(self, name: str) -> int | None:
        """Returns the place in `languages` of a language, in any code, or of a pair; None if it has none.

        "ca-es" is the pair of Catalan and Spanish, and not the Catalan of Spain, which is "ca-ES".
        """
        for place, code in enumerate(self.languages):
            is_pair = _PAIR.fullmatch(code) or _PAIR.fullmatch(name)
            if code == name or (not is_pair and same(code, name)):
                return place
        return None

    @functools.cached_property
    def phases(self) -> tuple[Phase, ...]:
        return phases_of(self.schedule, self.temperature)

    def shaping(self) -> dict[str, object]:
        """Returns the settings that `prepare` depends on, by name, as values for JSON."""
        fields = {k: v for k, v in dataclasses.asdict(self).items() if k not in _NOT_SHAPING}
        return fields | {"languages": list(self.languages), "subset_tags": list(self.subset_tags)}


_PAIR = re.compile("[a-z]{2,3}-[a-z]{2,3}")

ONLY_PREPARED = (
    *("minimum_pairs", "maximum_languages", "subset_tags", "spare_tags"),
    *("vocabulary_sentences", "vocabulary_temperature", "character_coverage", "romanize_source"),
)
"""The settings that only `prepare` reads, so in a run they have the values of its prepared data."""

_NOT_SHAPING = (
    *("rows", "packing_window", "temperature", "schedule"),
    *("subword_sampling", "subword_sampling_target", "augmentation"),
)
