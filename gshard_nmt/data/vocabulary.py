"""Strings to ids and back: SentencePiece vocabularies with fixed special ids and language tags."""

import collections
import dataclasses
import functools
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from gshard_nmt.errors import UserError

PAD, EOS, UNK, BOS = 0, 1, 2, 3
SPECIALS = 4
BYTES = 256
# Results of unigram training depend on the number of threads, so it is not the machine's.
TRAINING_THREADS = 2
CODING_THREADS = min(os.cpu_count() or 1, 16)


@dataclasses.dataclass(frozen=True)
class VocabularySpec:
    """What a vocabulary is to be.

    Attributes:
      size: pieces, specials, bytes and tags included; fewer where the text has no more.
      model: "bpe" or "unigram".
      coverage: share of the characters that get pieces; others are spelled in bytes.
      tags: symbols that text can never produce, such as `<2fr>`.
      normalization: "nmt_nfkc" for text that is only read, "identity" for text that is written, so
        that a translation can equal its reference to the letter.
    """

    size: int
    model: str = "bpe"
    coverage: float = 0.9995
    tags: tuple[str, ...] = ()
    normalization: str = "nmt_nfkc"


def source_tag(language: str) -> str:
    """The symbol that says which language the source is in."""
    return f"<{language}>"


def target_tag(language: str) -> str:
    """The symbol that says which language to translate into (Johnson et al. 2017)."""
    return f"<2{language}>"


class Vocabulary:
    """A trained SentencePiece model; PAD 0, EOS 1, UNK 2, BOS 3."""

    def __init__(self, model: bytes) -> None:
        """`model` is the content of a SentencePiece model file."""
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """The vocabulary of a model file.

        Raises:
          UserError: there is no such file, or it is no SentencePiece model with our special ids.
        """
        if not path.is_file():
            raise UserError(f"there is no vocabulary {path}; gshard-data prepare makes it.")
        try:
            vocabulary = cls(path.read_bytes())
        except RuntimeError as error:
            raise UserError(f"{path} is not a SentencePiece model: {error}.") from error
        p = vocabulary._processor
        if (p.pad_id(), p.eos_id(), p.unk_id(), p.bos_id()) != (PAD, EOS, UNK, BOS):
            raise UserError(
                f"{path} has other special ids than PAD {PAD}, EOS {EOS}, UNK {UNK}, BOS {BOS}; "
                "use a vocabulary that gshard-data prepare made."
            )
        return vocabulary

    @property
    def size(self) -> int:
        """V, the number of ids."""
        return self._processor.get_piece_size()

    @functools.cached_property
    def spells(self) -> np.ndarray:
        """bool[V]: ids that stand for no piece of text: UNK, and single bytes of rare characters."""
        p = self._processor
        return np.array([p.is_byte(i) or p.is_unknown(i) for i in range(self.size)])

    def tag(self, symbol: str) -> int | None:
        """The id of a language tag; None where the vocabulary does not have it."""
        found = self._processor.piece_to_id(symbol)
        return found if found >= SPECIALS and self._processor.is_control(found) else None

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without EOS or tags."""
        return self._processor.encode(list(texts), num_threads=CODING_THREADS) if texts else []

    def encode_source(self, texts: Sequence[str], language: str, target: str) -> list[list[int]]:
        """Ids that the encoder reads: the tags that the vocabulary has, target first, text, EOS.

        Args:
          texts: source sentences.
          language, target: BCP 47 tags of the source and of the target language.

        Returns:
          For `<2fr>` in the vocabulary and target fr: [<2fr>, ..., EOS].
        """
        symbols = (target_tag(target), source_tag(language))
        tags = [found for symbol in symbols if (found := self.tag(symbol)) is not None]
        return [[*tags, *ids, EOS] for ids in self.encode(texts)]

    def encode_target(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids that the decoder writes: text, EOS."""
        return [[*ids, EOS] for ids in self.encode(texts)]

    def decode(self, sentences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, up to its EOS where it has one."""
        cut = [_until_eos(ids) for ids in sentences]
        return self._processor.decode(cut, num_threads=CODING_THREADS) if cut else []


def _until_eos(ids: Sequence[int]) -> list[int]:
    plain = [int(i) for i in ids]
    return plain[: plain.index(EOS)] if EOS in plain else plain


def train_vocabulary(texts: Sequence[str], spec: VocabularySpec, path: Path) -> Vocabulary:
    """Learns a vocabulary, writes its model file and returns it; the same texts give the same file.

    Args:
      texts: sentences; one that occurs twice counts twice.
      spec: its size and kind.
      path: the model file to write.

    Raises:
      UserError: the texts are empty, or too varied for so small a vocabulary.
    """
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise UserError(f"there is no text to learn the vocabulary {path.name} from.")
    room = spec.size - SPECIALS - BYTES - len(spec.tags)
    if room < 2:
        raise UserError(
            f"a vocabulary of {spec.size} pieces has no room for text after {SPECIALS} special ids, "
            f"{BYTES} bytes and {len(spec.tags)} language tags; raise Data.source_vocabulary and "
            "Data.target_vocabulary."
        )
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=spec.size,
        # Text with fewer distinct pieces gives a smaller vocabulary instead of an error.
        hard_vocab_limit=False,
        model_type=spec.model,
        character_coverage=affordable_coverage(texts, spec.coverage, room // 2),
        byte_fallback=True,
        normalization_rule_name=spec.normalization,
        control_symbols=list(spec.tags),
        pad_id=PAD,
        eos_id=EOS,
        unk_id=UNK,
        bos_id=BOS,
        num_threads=TRAINING_THREADS,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    return Vocabulary(model.getvalue())


def affordable_coverage(texts: Iterable[str], coverage: float, characters: int) -> float:
    """The character coverage, lowered where it needs more than so many distinct characters.

    Thousands of Chinese and Korean characters must not crowd out everything else; the rarest of
    them are spelled in bytes instead.
    """
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    del counts[" "]
    common = [count for _, count in counts.most_common(characters)]
    return min(coverage, sum(common) / max(counts.total(), 1))
