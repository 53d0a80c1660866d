"""SentencePiece vocabularies, which turn text into ids and back, with fixed special ids and tags.

The ids of a new vocabulary are, in this order:

    0 1 2 3       PAD, EOS, UNK, BOS
    <doc> <ph>    reserved for later, on both sides
    <spare1> ...  reserved for languages, in the source vocabulary (`Data.spare_tags`)
    <2fr> ...     the languages to translate into, if there are several
    <fr> ...      the languages to translate from, with `Data.language_tags`
    <subset:back> the subsets of `Data.subset_tags`
    256 bytes, and the pieces of text
"""

import collections
import dataclasses
import functools
import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from gshard_nmt import files
from gshard_nmt.data.text.romanization import normalization_arguments, romanized
from gshard_nmt.data.worker_pool import usable_cpus
from gshard_nmt.errors import UserError

PAD, EOS, UNK, BOS = 0, 1, 2, 3
SPECIALS = 4
BYTES = 256
# The result of unigram training depends on the number of threads, so this number is fixed.
TRAINING_THREADS = 2
_SMALLEST_COVERAGE = 0.98
"""The smallest coverage that SentencePiece takes."""
CODING_THREADS = min(usable_cpus(), 16)
UNKNOWN_PENALTY = 10.0
"""SentencePiece gives an unknown character a score that is lower than all others by this number."""
_LONG_LINE = 4192
"""The bytes of the longest line that SentencePiece reads if it is not told otherwise."""

DOCUMENT_BREAK = "<doc>"
"""A symbol that is reserved for the end of a sentence inside a document, on both sides."""
PLACEHOLDER = "<ph>"
"""A symbol that is reserved for text that is copied as it is, on both sides."""
_RESERVED = (DOCUMENT_BREAK, PLACEHOLDER)
_SPARE = "<spare{}>"
SPACE = "\u2581"
"""The character of SentencePiece for a space."""


@dataclasses.dataclass(frozen=True)
class VocabularySpec:
    """The size and the kind of a vocabulary to train. A small text may give fewer pieces.

    `coverage` is the fraction of the characters that get pieces; rarer ones become bytes. No text is
    encoded to one of the `tags`, even if it contains `<2fr>`. The normalization "latin" also writes other
    scripts in Latin letters, and "identity" keeps all characters but U+2581. All make one space of
    several.
    """

    size: int
    model: str = "bpe"
    coverage: float = 0.9995
    tags: tuple[str, ...] = ()
    normalization: str = "nmt_nfkc"


def source_tag(language: str) -> str:
    tag = f"<{language}>"
    # "doc" is also the code of a language, Northern Dong.
    return f"<language:{language}>" if tag in _RESERVED else tag


def target_tag(language: str) -> str:
    """Returns the tag for the language to translate into, `<2fr>` (Johnson et al. 2017, section 3)."""
    return f"<2{language}>"


def first_tag(language: str) -> str:
    """Returns the tag that a translation into a language begins with, `<begin:fr>`.

    Our own vocabularies have none. The decoders of M2M-100 and NLLB begin with it.
    """
    return f"<begin:{language}>"


def subset_tag(subset: str) -> str:
    """Returns the tag for the corpus of a sentence, such as `<subset:back>` (Caswell et al. 2019)."""
    return f"<subset:{subset}>"


def reserved_symbols(spare_tags: int = 0) -> tuple[str, ...]:
    """Returns the symbols that each new vocabulary has for later uses; see `with_tags`."""
    return (*_RESERVED, *(_SPARE.format(n + 1) for n in range(spare_tags)))


class Vocabulary:
    """A trained SentencePiece model. Its special ids are PAD 0, EOS 1, UNK 2, BOS 3."""

    def __init__(self, model: bytes) -> None:
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Reads a vocabulary from its model file. Equal files give the same object."""
        if not path.is_file():
            raise UserError(f"there is no vocabulary {path}; make it with gshard-data prepare.")
        model = path.read_bytes()
        try:
            # SentencePiece takes an empty text as no model at all.
            vocabulary = vocabulary_of(model or b"empty")
        except (RuntimeError, ValueError) as error:
            raise UserError(
                f"{path} is not a SentencePiece model: {str(error).rstrip('.')}. Copy it again from "
                "where it was made, or make it with gshard-data prepare."
            ) from error
        p = vocabulary._processor
        if (p.pad_id(), p.eos_id(), p.unk_id(), p.bos_id()) != (PAD, EOS, UNK, BOS):
            raise UserError(
                f"{path} has special ids other than PAD {PAD}, EOS {EOS}, UNK {UNK}, BOS {BOS}; "
                "use a vocabulary that gshard-data prepare made, or train one with spm_train "
                f"--pad_id={PAD} --eos_id={EOS} --unk_id={UNK} --bos_id={BOS} --byte_fallback "
                f"--control_symbols={','.join(reserved_symbols(8))}."
            )
        return vocabulary

    @property
    def content(self) -> bytes:
        return self._processor.serialized_model_proto()

    @functools.cached_property
    def algorithm(self) -> str:
        """The algorithm of the model: "unigram" or "bpe"; "word" or "char" if it has no subwords."""
        return {1: "unigram", 2: "bpe", 3: "word", 4: "char"}[
            model_proto(self.content).trainer_spec.model_type
        ]

    @functools.cached_property
    def subwords(self) -> dict[str, tuple[int, float]]:
        """The id and the score of each piece of text: no special id, tag, byte or symbol of a user."""
        pieces = model_proto(self.content).pieces
        return {p.piece: (i, p.score) for i, p in enumerate(pieces) if p.type == p.NORMAL}

    def keys(self) -> list[tuple[str, str]]:
        """Returns the kind and the piece of each id. Ids of two vocabularies mean the same if they agree.

        The kind is "special" for the first ids, "control" for a tag, "byte", or "text".
        """
        pieces = model_proto(self.content).pieces
        kinds = {pieces[0].CONTROL: "control", pieces[0].BYTE: "byte"}
        keys = [(kinds.get(p.type, "text"), p.piece) for p in pieces]
        return [("special", str(i)) for i in range(SPECIALS)] + keys[SPECIALS:]

    def split_pieces(self, pieces: Sequence[str]) -> list[list[int]]:
        """Returns the ids into which this vocabulary splits each piece of another one, as it stands."""
        model = model_proto(self.content)
        spec = model.normalizer_spec
        spec.name, spec.precompiled_charsmap = "identity", b""
        spec.add_dummy_prefix = spec.remove_extra_whitespaces = False
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
        texts = [piece.replace(SPACE, " ") for piece in pieces]
        return processor.encode(texts, num_threads=CODING_THREADS) if texts else []

    @property
    def size(self) -> int:
        return self._processor.get_piece_size()

    @functools.cached_property
    def byte_values(self) -> np.ndarray:
        """int64[V]: the byte that an id spells, from 0 to 255; -1 for all other ids."""
        p = self._processor
        ids = range(self.size)
        return np.array([int(p.id_to_piece(i)[3:5], 16) if p.is_byte(i) else -1 for i in ids])

    @functools.cached_property
    def is_byte_fallback(self) -> np.ndarray:
        """bool[V], True for the 256 ids of single bytes, which spell rare characters, and for UNK."""
        return (self.byte_values >= 0) | (np.arange(self.size) == UNK)

    def tag(self, symbol: str) -> int | None:
        tag_id = self._processor.piece_to_id(symbol)
        return tag_id if tag_id >= SPECIALS and self._processor.is_control(tag_id) else None

    def encode(self, texts: Sequence[str], threads: int = CODING_THREADS) -> list[list[int]]:
        """Returns the ids of each text, without EOS and tags."""
        if len(texts) == 1:
            # SentencePiece would start threads, which takes longer than the work.
            return [self._processor.encode(texts[0])]
        return self._processor.encode(list(texts), num_threads=threads) if texts else []

    def encode_source(
        self, texts: Sequence[str], language: str, target: str, subset: str = ""
    ) -> list[list[int]]:
        """Returns the ids that the encoder reads: the tags that the vocabulary has, the text, EOS.

        The tags stand in this order: target, source, subset. If the target is fr and `<2fr>` is in the
        vocabulary, the ids of a text are [<2fr>, ..., EOS]. Text to translate has the subset "".
        """
        tags = self.tags(language, target, subset)
        return [[*tags, *ids, EOS] for ids in self.encode(texts)]

    def tags(self, language: str, target: str, subset: str = "") -> list[int]:
        """Returns the ids of the tags that stand before a source sentence, see `encode_source`."""
        symbols = (target_tag(target), source_tag(language), subset_tag(subset))
        return [tag_id for symbol in symbols if (tag_id := self.tag(symbol)) is not None]

    def first(self, target: str) -> list[int]:
        """Returns the ids that a translation into a language begins with: its tag, if there is one."""
        tag_id = self.tag(first_tag(target))
        return [] if tag_id is None else [tag_id]

    def decode(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each list of ids, up to the first EOS.

        A text is one line and one column. Byte fallback can spell any character, so whatever some
        program takes as the end of a line or of a column becomes a space.
        """
        plain = [[int(i) for i in ids] for ids in sentences]
        plain = [ids[: ids.index(EOS)] if EOS in ids else ids for ids in plain]
        if len(plain) == 1:
            texts = [self._processor.decode(plain[0])]
        else:
            texts = self._processor.decode(plain, num_threads=CODING_THREADS) if plain else []
        return [text.translate(_SPACES) for text in texts]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.id_to_piece(int(token)) for token in ids]


@functools.lru_cache(maxsize=4)
def vocabulary_of(model: bytes) -> Vocabulary:
    """Returns the vocabulary of the content of a model file, which is read once in a program."""
    return Vocabulary(model)


LINE_BREAKS = "\0\t\n\v\f\r\x1c\x1d\x1e\x85\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}"
"""The characters that some program takes as the end of a line or of a column. NUL ends a text in C.

A translation has spaces in their place, so that it is one line of a file, and one column of a table.
"""

_SPACES = str.maketrans(dict.fromkeys(LINE_BREAKS, " "))


def train_vocabulary(texts: Sequence[str], spec: VocabularySpec, path: Path) -> Vocabulary:
    """Trains a vocabulary, writes its model file and returns it. Equal texts give equal files."""
    if spec.normalization == "latin":
        texts = list(map(romanized, texts))
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise UserError(
            f"the training text for {path.name} is empty; add lines to the train files of the corpus."
        )
    room = spec.size - SPECIALS - BYTES - len(spec.tags)
    if room < 2:
        raise UserError(
            f"a vocabulary of {spec.size} pieces has no room for text after {SPECIALS} special ids, "
            f"{BYTES} bytes and {len(spec.tags)} tags; raise Data.source_vocabulary and "
            "Data.target_vocabulary."
        )
    texts, coverage = limit_characters(texts, spec.coverage, room // 2)
    model = io.BytesIO()
    # SentencePiece skips longer lines in silence. The model file holds the number, so it is given only if
    # it makes a difference.
    longest = max((len(text.encode()) for text in texts if len(text) > _LONG_LINE // 4), default=0)
    length: dict[str, Any] = {"max_sentence_length": longest} if longest > _LONG_LINE else {}
    try:
        with normalization_arguments(spec.normalization) as normalization:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts),
                model_writer=model,
                vocab_size=spec.size,
                # If the text has fewer distinct pieces, the vocabulary is smaller; that is not an error.
                hard_vocab_limit=False,
                model_type=spec.model,
                character_coverage=coverage,
                byte_fallback=True,
                control_symbols=list(spec.tags),
                pad_id=PAD,
                eos_id=EOS,
                unk_id=UNK,
                bos_id=BOS,
                num_threads=TRAINING_THREADS,
                minloglevel=2,
                **length,
                **normalization,
            )
    except RuntimeError as error:
        raise UserError(
            f"SentencePiece cannot learn {path.name} from this text ({str(error).strip()}). Add lines "
            "with letters to the train files of the corpus."
        ) from error
    content = model.getvalue()
    parsed = model_proto(content)
    if parsed.normalizer_spec.HasField("normalization_rule_tsv"):
        # Without the path of its rules, equal texts give equal files.
        parsed.normalizer_spec.ClearField("normalization_rule_tsv")
        content = parsed.SerializeToString(deterministic=True)
    files.write(path, content)
    return Vocabulary(content)


def limit_characters(
    texts: Sequence[str], coverage: float, characters: int
) -> tuple[Sequence[str], float]:
    """Returns texts and a coverage that give pieces to at most `characters` characters.

    Otherwise thousands of Chinese and Korean characters would leave no room for other pieces. The
    rarest characters become bytes instead, or spaces if SentencePiece does not take the coverage.
    """
    counts = collections.Counter(itertools.chain.from_iterable(texts))
    del counts[" "]
    total = max(counts.total(), 1)
    coverage = min(coverage, sum(count for _, count in counts.most_common(characters)) / total)
    if coverage >= _SMALLEST_COVERAGE:
        return texts, coverage
    kept, seen = {" "}, 0
    for character, count in counts.most_common():
        seen += count
        # Half a character for the rounding of the product.
        if seen > coverage * total + 0.5 and len(kept) > 1:
            break
        kept.add(character)
    rare = str.maketrans(dict.fromkeys(counts.keys() - kept, " "))
    return [text.translate(rare) for text in texts], 1.0


def with_tags(
    vocabulary: Vocabulary, tags: Sequence[str], name: str = "", grows: bool = False
) -> Vocabulary:
    """Returns a vocabulary that has these tags: spare tags get the names that are missing.

    All ids stay the same, so a model that was trained with `vocabulary` can use the result. `name` is
    the setting and the file of the vocabulary, for messages. With `grows`, tags get new ids at the end
    if there are not enough spare tags.
    """
    missing = [tag for tag in tags if vocabulary.tag(tag) is None]
    if not missing:
        return vocabulary
    model = model_proto(vocabulary.content)
    start = _SPARE.split("{")[0]
    spares = [p for p in model.pieces if p.type == p.CONTROL and p.piece.startswith(start)]
    if len(missing) > len(spares) and not grows:
        raise UserError(
            f"{name} lacks the tags {', '.join(missing)} and has {len(spares)} spare tags. Use a "
            f"vocabulary that was trained with --control_symbols={','.join(missing)}, or leave out "
            "languages."
        )
    for piece, tag in zip(spares, missing, strict=False):
        piece.piece = tag
    for tag in missing[len(spares) :]:
        model.pieces.add(piece=tag, type=model.SentencePiece.CONTROL)
    return Vocabulary(model.SerializeToString(deterministic=True))


def model_proto(model: bytes) -> Any:
    """Returns the ModelProto of the content of a model file."""
    from sentencepiece import sentencepiece_model_pb2

    return sentencepiece_model_pb2.ModelProto.FromString(model)
