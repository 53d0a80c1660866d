"""Adds the pieces and the tags of a new language to the vocabulary of a trained model.

All old ids keep their pieces, so a model can go on with its embeddings, and old shards stay right. New
pieces have the ids after them. They are learned as byte-pair encoding learns (Sennrich et al. 2016,
section 3.2), but it begins with the pieces into which the old vocabulary splits the new text:

    old pieces of a word   new pieces that are tried
    ▁ge h en               "▁geh", then "▁gehen"
    ▁ <0xCE> <0xBB> ...    the characters that were bytes, then pairs of them

A pair of pieces that stand side by side in old text never becomes a new piece. So old text keeps its
pieces; only a character that was spelled as bytes can become one piece in old text too.
"""

import collections
import dataclasses
import itertools
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import sentencepiece

from gshard_nmt.data.text.vocabulary import Vocabulary, with_tags
from gshard_nmt.errors import UserError

LONGEST_PIECE = 16
"""The largest number of characters of a new piece, the default of SentencePiece."""

LEAST_CHARACTERS = 3
LEAST_PIECES = 10
"""A new character, or a new longer piece, occurs at least this number of times in the new text."""

_SPACE = "\u2581"
_GAIN = 1e-3
"""In a unigram model, a new piece scores this much above the two pieces that it is made of."""

_ROUND = 64
"""The size stays a multiple of the largest divisor that it shares with this number, for meshes."""


@dataclasses.dataclass(frozen=True)
class Growth:
    """A vocabulary with a new language.

    Attributes:
      vocabulary: the larger vocabulary. Its first ids are those of the old one.
      pieces: the new pieces of text, in the order of their ids.
      tokens_before, tokens: the number of tokens of the new text with the old and the new vocabulary.
    """

    vocabulary: Vocabulary
    pieces: tuple[str, ...]
    tokens_before: int
    tokens: int


def grown(
    old: Vocabulary,
    lines: Sequence[str],
    old_pairs: set[str],
    tags: Sequence[str],
    most: int,
    name: str,
) -> Growth:
    """Returns a vocabulary with new pieces for these lines, and with these tags.

    Spare tags get the names of tags first. If a size would no longer divide as it did, further spare tags
    fill it up.

    Args:
      old: the vocabulary of a trained model.
      lines: text of the new language.
      old_pairs: the texts that never become new pieces, see `pairs_of`.
      tags: symbols such as `<2nn>`.
      most: the largest number of new pieces.
      name: the file of the vocabulary, for messages.

    Raises:
      UserError: the vocabulary has no subwords.
    """
    if old.algorithm not in ("bpe", "unigram"):
        raise UserError(
            f"{name} is a SentencePiece model of type {old.algorithm!r}, which cannot get new pieces. "
            "Start from a run with a bpe or unigram vocabulary, or give --new_pieces 0."
        )
    learner = _Learner(old, _words(old, lines), old_pairs)
    parts = learner.learn(most)
    vocabulary = with_tags(old, tags, name, grows=True)
    if parts or vocabulary.size > old.size:
        vocabulary = _with_pieces(vocabulary, old, parts)
    before, after = (sum(map(len, v.encode(lines))) for v in (old, vocabulary))
    return Growth(vocabulary, tuple(parts), before, after)


def pairs_of(vocabulary: Vocabulary, ids: np.ndarray) -> set[str]:
    """Returns the texts of all pairs of pieces that stand side by side.

    Args:
      vocabulary: the vocabulary.
      ids: int64[tokens], sentences one after the other, each with its EOS.
    """
    size, keys = vocabulary.size, vocabulary.keys()
    pairs = np.unique(ids[:-1].astype(np.int64) * size + ids[1:])
    texts = set()
    for first, second in zip((pairs // size).tolist(), (pairs % size).tolist(), strict=True):
        (kind, left), (other, right) = keys[first], keys[second]
        if kind == other == "text" and _may_be_piece(left + right):
            texts.add(left + right)
    return texts


def changed_lines(old: Vocabulary, new: Vocabulary, lines: Sequence[str]) -> int:
    """Returns how many lines the two vocabularies split differently."""
    pairs = zip(old.encode(lines), new.encode(lines), strict=True)
    return sum(before != after for before, after in pairs)


Parts = dict[str, tuple[str, ...]]
"""New pieces and the pieces that each is made of; a new character is made of nothing."""


class _Learner:
    """Merges the pieces of words, the most frequent pair first."""

    def __init__(
        self, old: Vocabulary, words: Mapping[tuple[str, ...], int], banned: set[str]
    ) -> None:
        """Counts nothing yet.

        Args:
          old: the old vocabulary.
          words: the symbols of each word, and how often it occurs.
          banned: texts that never become pieces.
        """
        self._known = {piece: score for piece, (_, score) in old.subwords.items()}
        self._merges_old = old.algorithm == "bpe"
        self._words = [list(word) for word in words]
        self._counts = list(words.values())
        self._banned = banned
        self._pairs: collections.Counter[tuple[str, str]] = collections.Counter()
        self._places: dict[tuple[str, str], set[int]] = {}

    def learn(self, most: int) -> Parts:
        """Returns at most `most` new pieces, those that others are made of first."""
        parts = self._characters(most)
        self._symbols = self._known.keys() | parts.keys()
        for number in range(len(self._words)):
            self._count(number, 1)
        while len(parts) < most:
            pair = max(self._pairs, key=lambda p: (self._pairs[p], p), default=("", ""))
            if self._pairs[pair] < LEAST_PIECES:
                break
            piece = "".join(pair)
            parts.setdefault(piece, pair)
            self._symbols.add(piece)
            for number in sorted(self._places[pair]):
                self._count(number, -1)
                self._merge(self._words[number], piece)
                self._count(number, 1)
        return parts

    def _characters(self, most: int) -> Parts:
        """Returns the frequent characters that the old vocabulary spells as bytes."""
        counts: collections.Counter[str] = collections.Counter()
        for word, count in zip(self._words, self._counts, strict=True):
            for symbol in word:
                if symbol not in self._known and unicodedata.category(symbol[0])[0] not in "CZ":
                    counts[symbol] += count
        frequent = sorted(counts, key=lambda c: (-counts[c], c))[:most]
        return {c: () for c in frequent if counts[c] >= LEAST_CHARACTERS}

    def _count(self, number: int, sign: int) -> None:
        """Adds the pairs of a word to the counts, or takes them away."""
        word, count = self._words[number], sign * self._counts[number]
        for pair in itertools.pairwise(word):
            text = "".join(pair)
            if text in self._known or text in self._banned or not _may_be_piece(text):
                continue
            if pair[0] in self._symbols and pair[1] in self._symbols:
                self._pairs[pair] += count
                places = self._places.setdefault(pair, set())
                if sign > 0:
                    places.add(number)
                elif self._pairs[pair] <= 0:
                    del self._pairs[pair]

    def _merge(self, word: list[str], piece: str) -> None:
        """Makes one symbol of each pair that spells a piece, and old pieces that follow from it."""
        _join(word, piece)
        while self._merges_old:
            # A merge of the old vocabulary goes before a new one.
            texts = [a + b for a, b in itertools.pairwise(word)]
            old = [text for text in texts if text in self._known]
            if not old:
                return
            _join(word, max(old, key=lambda text: self._known[text]))


def _join(word: list[str], piece: str) -> None:
    place = 0
    while place + 1 < len(word):
        if word[place] + word[place + 1] == piece:
            word[place : place + 2] = [piece]
        place += 1


def _words(vocabulary: Vocabulary, lines: Iterable[str]) -> dict[tuple[str, ...], int]:
    """Returns the symbols of each word and its count: old pieces, and characters that were bytes."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.content)
    counts: collections.Counter[str] = collections.Counter()
    for line in processor.normalize(list(lines)):
        counts.update(_SPACE + word for word in line.split(_SPACE) if word)
    keys = vocabulary.keys()
    split = vocabulary.split_pieces(list(counts))
    return {
        tuple(_symbols([keys[token] for token in ids])): count
        for ids, count in zip(split, counts.values(), strict=True)
    }


def _symbols(keys: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields the pieces of a word. Bytes become the characters that they spell."""
    spelled = b""
    for kind, piece in (*keys, ("end", "")):
        if kind == "byte":
            spelled += bytes([int(piece[3:5], 16)])
            continue
        yield from spelled.decode("utf-8", "replace")
        spelled = b""
        if kind == "text":
            yield piece


def _may_be_piece(text: str) -> bool:
    """Returns whether a text is short, and of letters and marks alone, perhaps after a space."""
    letters = text.removeprefix(_SPACE)
    return len(text) <= LONGEST_PIECE and all(unicodedata.category(c)[0] in "LM" for c in letters)


def _with_pieces(vocabulary: Vocabulary, old: Vocabulary, parts: Parts) -> Vocabulary:
    """Returns a vocabulary with new pieces after its own. Its scores let old pieces go first."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.content)
    scores = {piece: score for piece, (_, score) in old.subwords.items()}
    least = min(scores.values(), default=0.0)
    for number, (piece, pair) in enumerate(parts.items(), 1):
        if old.algorithm == "bpe":
            scores[piece] = least - number  # the score is the order of the merges
        else:
            scores[piece] = sum(scores[part] for part in pair) + _GAIN if pair else least
        model.pieces.add(piece=piece, score=scores[piece], type=model.SentencePiece.NORMAL)
    number = 0
    while len(model.pieces) % math.gcd(old.size, _ROUND):
        number += 1
        if vocabulary.tag(name := f"<spare{number}>") is None:
            model.pieces.add(piece=name, type=model.SentencePiece.CONTROL)
    model.trainer_spec.vocab_size = len(model.pieces)
    return Vocabulary(model.SerializeToString(deterministic=True))
