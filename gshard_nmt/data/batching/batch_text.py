"""Training batches as text: turns the arrays that a step sees back into sentences.

Everything is read from the arrays themselves, so the text is what training sees: tags, truncation, byte
fallback and padding included.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.data.sets.manifest import PreparedPair
from gshard_nmt.data.text.vocabulary import EOS, SPACE, UNK, Vocabulary


@dataclasses.dataclass(frozen=True)
class Span:
    """A part of a sentence: "text", a language "tag", a spelled character ("bytes"), or "unknown"."""

    text: str
    kind: str


@dataclasses.dataclass(frozen=True)
class Sentence:
    """One side of a segment. `fallback` of its `tokens` are single bytes or unknown."""

    spans: tuple[Span, ...]
    tokens: int
    fallback: int

    @property
    def plain(self) -> str:
        return "".join(span.text for span in self.spans)


@dataclasses.dataclass(frozen=True)
class Segment:
    """A sentence pair in a row. `pairs` are the folders that it may come from: several without a tag."""

    language: str
    pairs: tuple[str, ...]
    source: Sentence
    target: Sentence

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {"language": self.language, "pairs": list(self.pairs)}
        for side, sentence in (("source", self.source), ("target", self.target)):
            values[side] = sentence.plain
            values[f"{side}_tokens"] = sentence.tokens
            values[f"{side}_fallback"] = sentence.fallback
        return values


@dataclasses.dataclass(frozen=True)
class RowText:
    """A row of a batch, with its number from 1 and its source and target positions."""

    number: int
    segments: tuple[Segment, ...]
    lengths: tuple[int, int]

    @property
    def filled(self) -> tuple[int, int]:
        return sum(s.source.tokens for s in self.segments), sum(
            s.target.tokens for s in self.segments
        )

    def to_json(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "row": self.number,
            "source_positions": self.lengths[0],
            "target_positions": self.lengths[1],
            "source_filled": self.filled[0],
            "target_filled": self.filled[1],
            "segments": [segment.to_json() for segment in self.segments],
        }


def read_rows(
    arrays: Mapping[str, np.ndarray],
    numbers: Sequence[int],
    pairs: Sequence[PreparedPair],
    languages: Sequence[str],
    vocabularies: Sequence[Vocabulary],
    pieces: bool = False,
) -> Iterator[RowText]:
    """Yields rows of the arrays of `TrainBatches`, int32[rows, L], with these numbers.

    `languages` are those of the run, in the order of the ids in the arrays. With `pieces`, the text has
    spaces between all pieces.
    """
    origins = [
        (pair.language, vocabularies[0].tags(pair.source, pair.target, pair.subset), pair.folder)
        for pair in pairs
    ]
    for r, number in enumerate(numbers):
        row = {name: array[r] for name, array in arrays.items()}
        segments = []
        for n in range(1, int(row["source_segments"].max(initial=0)) + 1):
            source, target = row["source_segments"] == n, row["target_segments"] == n
            language = languages[int(row["source_languages"][source][0]) - 1]
            ids = row["source_ids"][source].tolist(), row["target_labels"][target].tolist()
            begun = [
                (len(tags), folder)
                for of, tags, folder in origins
                if of == language and ids[0][: len(tags)] == tags
            ]
            longest = max((length for length, _ in begun), default=0)
            folders = tuple(folder for length, folder in begun if length == longest)
            sentences = (_sentence(*side, pieces) for side in zip(ids, vocabularies, strict=True))
            segments.append(Segment(language, folders, *sentences))
        lengths = (len(row["source_segments"]), len(row["target_segments"]))
        yield RowText(number, tuple(segments), lengths)


def _sentence(ids: Sequence[int], vocabulary: Vocabulary, pieces: bool) -> Sentence:
    texts = vocabulary.pieces(ids)
    kinds = [_kind(token, piece, vocabulary) for token, piece in zip(ids, texts, strict=True)]
    spans: list[Span] = []
    if pieces:
        for piece, kind in zip(texts, kinds, strict=True):
            spans += [Span(piece, kind), Span(" ", "text")]
        spans.pop()
    else:
        known = (n for n, token in enumerate(ids) if token != EOS)
        spans = _joined([(texts[n], kinds[n]) for n in known])
    return Sentence(tuple(spans), len(ids), int(vocabulary.is_byte_fallback[list(ids)].sum()))


def _joined(pieces: Sequence[tuple[str, str]]) -> list[Span]:
    """Returns the parts of a sentence. Neighboring bytes together are one part."""
    spans: list[Span] = []
    is_first = True
    for kind, run in itertools.groupby(pieces, lambda piece: piece[1]):
        if kind == "bytes":
            spelled = bytes(int(piece[3:-1], 16) for piece, _ in run)
            spans.append(Span(spelled.decode("utf-8", "replace"), kind))
            is_first = False
            continue
        for piece, _ in run:
            text = piece.replace(SPACE, " ")
            if kind == "text" and is_first:
                text, is_first = text.lstrip(" "), False
            spans.append(Span(f"{text} " if kind == "tag" else text, kind))
    return spans


def _kind(token: int, piece: str, vocabulary: Vocabulary) -> str:
    if token == UNK:
        return "unknown"
    if vocabulary.is_byte_fallback[token]:
        return "bytes"
    return "tag" if token != EOS and vocabulary.tag(piece) == token else "text"
