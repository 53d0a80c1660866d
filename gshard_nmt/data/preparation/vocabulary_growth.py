"""Adds the pieces and the tags of a new language to the vocabulary of a trained model.

All old ids keep their pieces, so a model can go on with its embeddings, and old shards stay right. New
pieces have the ids after them. They are learned as byte-pair encoding learns (Sennrich et al. 2016,
section 3.2), but it begins with the pieces into which the old vocabulary splits the new text:

    old pieces of a word   new pieces that are tried
    ▁ge h en               "▁geh", then "▁gehen"
    ▁ <0xCE> <0xBB> ...    the characters that were bytes, then pairs of them

A pair of pieces that stand side by side in `OLD_EXAMPLES` of old text never becomes a new piece. So old
text almost always keeps its pieces; a character that was spelled as bytes can become one piece there too.
"""

import collections
import dataclasses
import itertools
import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from gshard_nmt import files
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.corpus import CorpusPair, read_pairs
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text import vocabulary as text_vocabulary
from gshard_nmt.data.text.vocabulary import SPACE, Vocabulary, first_tag, source_tag, target_tag

LONGEST_PIECE = 16
"""The largest number of characters of a new piece, the default of SentencePiece."""

LEAST_CHARACTERS = 3
LEAST_PIECES = 10
"""A new character, or a new longer piece, occurs at least this number of times in the new text."""

_GAIN = 1e-3
"""In a unigram model, a new piece scores this much above the two pieces that it is made of."""

LINES = 200_000
"""The largest number of lines of each pair that new pieces are learned from."""

OLD_EXAMPLES = 4000
"""The examples of each old direction whose pieces are kept apart from new ones."""

_ROUND = 64
"""The size stays a multiple of the largest divisor that it shares with this number, for meshes."""


def grown(
    old: Vocabulary, lines: Sequence[str], old_pairs: set[str], tags: Sequence[str], most: int
) -> tuple[Vocabulary, list[str]]:
    """Returns a vocabulary with these tags and at most `most` new pieces for these lines; and the pieces.

    Spare tags get the names of tags first. If a size would no longer divide as it did, further spare tags
    fill it up. The texts `old_pairs` never become pieces, see `pairs_of`.
    """
    parts = learn(old, lines, old_pairs, most)
    vocabulary = text_vocabulary.with_tags(old, tags, grows=True)
    if not parts and vocabulary.size == old.size:
        return vocabulary, []
    model = text_vocabulary.model_proto(vocabulary.content)
    for piece, score in _scores(old, parts).items():
        model.pieces.add(piece=piece, score=score, type=model.SentencePiece.NORMAL)
    number = 0
    while len(model.pieces) % math.gcd(old.size, _ROUND):
        number += 1
        if vocabulary.tag(name := f"<spare{number}>") is None:
            model.pieces.add(piece=name, type=model.SentencePiece.CONTROL)
    model.trainer_spec.vocab_size = len(model.pieces)
    return Vocabulary(model.SerializeToString(deterministic=True)), [*parts]


def pairs_of(vocabulary: Vocabulary, ids: np.ndarray) -> set[str]:
    """Returns the texts of all pairs of pieces that stand side by side in int64[tokens] `ids`."""
    size, keys = vocabulary.size, vocabulary.keys()
    pairs = np.unique(ids[:-1].astype(np.int64) * size + ids[1:])
    texts = set()
    for first, second in zip((pairs // size).tolist(), (pairs % size).tolist(), strict=True):
        (kind, left), (other, right) = keys[first], keys[second]
        if kind == other == "text" and _may_be_piece(left + right):
            texts.add(left + right)
    return texts


Parts = dict[str, tuple[str, ...]]
"""New pieces and the pieces that each is made of; a new character is made of nothing."""


def learn(old: Vocabulary, lines: Sequence[str], banned: set[str], most: int) -> Parts:
    """Merges the pieces of words, the most frequent pair first; no text of `banned` becomes a piece."""
    words = _words(old, lines)
    known = {piece: score for piece, (_, score) in old.subwords.items()}
    parts = _characters(known, words, most)
    symbols = known.keys() | parts.keys()
    splits = [list(word) for word in words]
    counts = list(words.values())
    pairs: collections.Counter[tuple[str, str]] = collections.Counter()
    places: dict[tuple[str, str], set[int]] = collections.defaultdict(set)

    def count(number: int, sign: int) -> None:
        for pair in itertools.pairwise(splits[number]):
            text = "".join(pair)
            if text in known or text in banned or not _may_be_piece(text):
                continue
            if symbols.issuperset(pair):
                pairs[pair] += sign * counts[number]
                if sign > 0:
                    places[pair].add(number)
                elif pairs[pair] <= 0:
                    del pairs[pair]

    for number in range(len(splits)):
        count(number, 1)
    while len(parts) < most:
        pair = max(pairs, key=lambda p: (pairs[p], p), default=("", ""))
        if pairs[pair] < LEAST_PIECES:
            break
        piece = "".join(pair)
        parts.setdefault(piece, pair)
        symbols.add(piece)
        for number in sorted(places[pair]):
            count(number, -1)
            _join(splits[number], piece)
            if old.algorithm == "bpe":
                merge(splits[number], known)
            count(number, 1)
    return parts


def _characters(old: Mapping[str, float], words: Mapping[tuple[str, ...], int], most: int) -> Parts:
    """Returns the frequent characters that the old vocabulary spells as bytes."""
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for symbol in word:
            if symbol not in old and unicodedata.category(symbol[0])[0] not in "CZ":
                counts[symbol] += count
    frequent = sorted(counts, key=lambda c: (-counts[c], c))[:most]
    return {c: () for c in frequent if counts[c] >= LEAST_CHARACTERS}


def merge(word: list[str], known: Mapping[str, float]) -> set[str]:
    """Makes the known pieces that the symbols of a word allow, that of the highest score first.

    Returns the pieces that were made. Of pieces with equal scores the first is made first, as BPE does.
    """
    made: set[str] = set()
    while old := [a + b for a, b in itertools.pairwise(word) if a + b in known]:
        made.add(best := max(old, key=lambda text: known[text]))
        _join(word, best)
    return made


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
        counts.update(SPACE + word for word in line.split(SPACE) if word)
    keys = vocabulary.keys()
    split = vocabulary.split_pieces(list(counts))
    return {
        tuple(_symbols(word, [keys[token] for token in ids])): count
        for ids, (word, count) in zip(split, counts.items(), strict=True)
    }


def _symbols(word: str, keys: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields the pieces of a word, and the characters that it has as bytes or as UNK."""
    pieces = [piece for kind, piece in keys if kind == "text"]
    for piece in pieces:
        unknown, _, word = word.partition(piece)
        yield from unknown
        yield piece
    yield from word


def _may_be_piece(text: str) -> bool:
    """Returns whether a text is short, and of letters and marks alone, perhaps after a space."""
    letters = text.removeprefix(SPACE)
    return len(text) <= LONGEST_PIECE and all(unicodedata.category(c)[0] in "LM" for c in letters)


def _scores(old: Vocabulary, parts: Parts) -> dict[str, float]:
    """Returns the scores of new pieces. Old pieces go first."""
    scores = {piece: score for piece, (_, score) in old.subwords.items()}
    least = min(scores.values(), default=0.0)
    for number, (piece, pair) in enumerate(parts.items(), 1):
        if old.algorithm == "bpe":
            scores[piece] = least - number  # the score is the order of the merges
        else:
            scores[piece] = sum(scores[part] for part in pair) + _GAIN if pair else least
    return {piece: scores[piece] for piece in parts}


def grown_together(
    olds: Mapping[str, Vocabulary], learned: Mapping[str, Parts], tags: Mapping[str, str]
) -> dict[str, Vocabulary]:
    """Returns both vocabularies of a model with one embedding, so an id means the same on both sides.

    Args:
      olds: the vocabularies of "source" and "target".
      learned: the new pieces of each side.
      tags: the tag that each side has at one new id; empty if there is none.

    A longer piece that only one side has learned splits no text of the other one. A token that both have,
    and that splits no text yet, keeps its id.
    """
    models = {side: text_vocabulary.model_proto(old.content) for side, old in olds.items()}
    places = {side: {p.piece: p for p in model.pieces} for side, model in models.items()}
    named = set.intersection(*map(set, places.values()))
    names = [n for n in dict.fromkeys(itertools.chain(*learned.values())) if n not in named]
    for side, model in models.items():
        old, known, kinds = olds[side], places[side], model.SentencePiece
        first = [tags[side]] if tags else []
        count = -(old.size + len(first) + len(names)) % math.gcd(old.size, _ROUND)
        spares = [f"<spare{number + 1}>" for number in range(count)]
        lowest = min((score for _, score in old.subwords.values()), default=0.0)
        for name in (*first, *names, *spares):
            text = f"<unused:{name}>" if name in known else name
            piece = model.pieces.add(piece=text, type=kinds.CONTROL)
            if text in names and len(text) == 1:
                # transformers looks up an unknown character among the tokens of both sides.
                piece.type, piece.score = kinds.NORMAL, lowest - text_vocabulary.UNKNOWN_PENALTY
            elif text in names and old.algorithm == "unigram":
                piece.type = kinds.UNUSED  # BPE would merge characters to it
            known.setdefault(name, piece)
        for piece, score in _scores(old, learned[side]).items():
            known[piece].type, known[piece].score = kinds.NORMAL, score
        model.trainer_spec.vocab_size = len(model.pieces)
    return {s: Vocabulary(m.SerializeToString(deterministic=True)) for s, m in models.items()}


@dataclasses.dataclass(frozen=True)
class Newcomer:
    """A new language with its text and its directions, and the run that it is added to."""

    language: str
    pairs: Sequence[CorpusPair]
    directions: Sequence[tuple[str, str]]
    old_targets: set[str]
    config: Data
    vocabularies: Path
    most: int
    has_one_embedding: bool = False  # Model.shared_embedding

    def tags(self) -> list[str]:
        """Returns the tags that its sources begin with. One of several target languages needs one."""
        targets = self.old_targets | {target for _, target in self.directions}
        is_target = any(target == self.language for _, target in self.directions)
        tags = [target_tag(self.language)] if is_target and len(targets) > 1 else []
        if self.config.language_tags and any(s == self.language for s, _ in self.directions):
            tags.append(source_tag(self.language))
        return tags

    def lines(self) -> list[str]:
        lines = []
        for pair in self.pairs:
            side = int(pair.source != self.language)
            rows = read_pairs(pair, "train", pair.source, pair.target)
            lines += [row[side] for row in itertools.islice(rows, LINES)]
        return lines


def grow_pair(new: Newcomer, data: PreparedData, folder: Path, say: Callable[[str], None]) -> None:
    """Writes both vocabularies into a folder, with new pieces on the sides that have the language.

    `data` is the prepared data of the run, and `say` prints a line.
    """
    lines, is_joint = new.lines(), new.config.vocabulary == "joint"
    paths = {side: new.vocabularies / name for side, name in zip(SIDES, VOCABULARIES, strict=True)}
    olds = {side: Vocabulary.load(path) for side, path in paths.items()}
    sides = {"source": SIDES} if is_joint else {side: (side,) for side in SIDES}
    spoken = {s for d in new.directions for s, t in zip(SIDES, d, strict=True) if t == new.language}
    used = {side for side, parts in sides.items() if spoken & set(parts)}
    kept = {side: _pairs_of_old_text(new.config, data, olds[side], sides[side]) for side in used}
    if new.has_one_embedding and not is_joint:
        is_begun = any(map(olds["target"].first, new.old_targets))
        # The tokenizers of M2M-100 and NLLB take new tags in transformers, but no new pieces.
        most = 0 if is_begun else new.most
        learned = {s: learn(v, lines, kept[s], most) if s in used else {} for s, v in olds.items()}
        both = {side: tag for side in SIDES for tag in new.tags()}
        if is_begun:
            both = {"source": source_tag(new.language), "target": first_tag(new.language)}
        grown_ones = grown_together(olds, learned, both)
        pieces = {side: [*parts] for side, parts in learned.items()}
    else:
        grown_ones, pieces = {}, {}
        for side in sides:
            tags, own = new.tags() if side == "source" else [], lines if side in used else []
            grown_ones[side], pieces[side] = grown(
                olds[side], own, kept.get(side, set()), tags, new.most
            )
    for side, path in paths.items():
        files.write(folder / path.name, grown_ones["source" if is_joint else side].content)
        if side in used:
            before, after = (
                sum(map(len, v.encode(lines))) / max(len(lines), 1)
                for v in (olds[side], grown_ones[side])
            )
            say(
                f"{path.name}: {olds[side].size:,} pieces, and {len(pieces[side])} new ones for "
                f"{new.language}; its text needs {after:.1f} tokens a line instead of {before:.1f}."
            )


def _pairs_of_old_text(
    config: Data, data: PreparedData, vocabulary: Vocabulary, sides: Sequence[str]
) -> set[str]:
    texts: set[str] = set()
    for pair in data.pairs_of(config):
        count = pair.splits["train"].examples
        places = np.unique(np.linspace(0, count - 1, min(count, OLD_EXAMPLES)).astype(np.int64))
        examples = data.reader(pair, "train").read(places)
        for side in sides:
            ids = [getattr(example, side) for example in examples]
            texts |= pairs_of(vocabulary, np.concatenate(ids))
    return texts
