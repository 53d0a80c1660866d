"""Training batches as text: turns the arrays that a step sees back into sentences.

Everything is read from the arrays themselves, so the text is what training sees: tags, truncation, byte
fallback and padding included.
"""

import dataclasses
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


class BatchReader:
    """Turns rows of arrays into text, or with `pieces` into pieces with spaces between."""

    def __init__(
        self,
        pairs: Sequence[PreparedPair],
        languages: Sequence[str],
        vocabularies: tuple[Vocabulary, Vocabulary],
        pieces: bool = False,
    ) -> None:
        """`languages` are those of the run, in the order of the ids in the arrays."""
        self._languages, self._vocabularies, self._pieces = languages, vocabularies, pieces
        tags = [vocabularies[0].tags(p.source, p.target, p.subset) for p in pairs]
        self._pairs = list(zip(pairs, map(tuple, tags), strict=True))

    def rows(self, arrays: Mapping[str, np.ndarray], numbers: Sequence[int]) -> Iterator[RowText]:
        """Yields rows of the arrays of `TrainBatches`, int32[rows, L], with these numbers."""
        for r, number in enumerate(numbers):
            row = {name: array[r] for name, array in arrays.items()}
            segments = range(1, int(row["source_segments"].max(initial=0)) + 1)
            lengths = (len(row["source_segments"]), len(row["target_segments"]))
            yield RowText(number, tuple(self._segment(row, n) for n in segments), lengths)

    def _segment(self, row: Mapping[str, np.ndarray], number: int) -> Segment:
        source = row["source_segments"] == number
        target = row["target_segments"] == number
        language = self._languages[int(row["source_languages"][source][0]) - 1]
        ids = row["source_ids"][source].tolist()
        return Segment(
            language,
            self._origins(language, tuple(ids)),
            self._sentence(ids, self._vocabularies[0]),
            self._sentence(row["target_labels"][target].tolist(), self._vocabularies[1]),
        )

    def _origins(self, language: str, ids: tuple[int, ...]) -> tuple[str, ...]:
        pairs = [
            (pair.folder, len(tags))
            for pair, tags in self._pairs
            if pair.language == language and ids[: len(tags)] == tags
        ]
        longest = max((length for _, length in pairs), default=0)
        return tuple(folder for folder, length in pairs if length == longest)

    def _sentence(self, ids: Sequence[int], vocabulary: Vocabulary) -> Sentence:
        fallback = int(vocabulary.is_byte_fallback[np.asarray(ids, np.int64)].sum())
        return Sentence(tuple(self._spans(ids, vocabulary)), len(ids), fallback)

    def _spans(self, ids: Sequence[int], vocabulary: Vocabulary) -> Iterator[Span]:
        """Yields the parts of a sentence. Neighboring bytes together are one part."""
        pieces = vocabulary.pieces(ids)
        if self._pieces:
            for n, (token, piece) in enumerate(zip(ids, pieces, strict=True)):
                if n:
                    yield Span(" ", "text")
                yield Span(piece, _kind(token, piece, vocabulary))
            return
        spelled = b""
        is_first = True
        for token, piece in zip([*ids, EOS], [*pieces, ""], strict=True):
            kind = _kind(token, piece, vocabulary)
            if kind == "bytes":
                spelled += bytes([int(piece[3:-1], 16)])
                continue
            if spelled:
                yield Span(spelled.decode("utf-8", "replace"), "bytes")
                spelled, is_first = b"", False
            if token == EOS:
                continue
            text = piece.replace(SPACE, " ")
            if kind == "text" and is_first:
                text, is_first = text.lstrip(" "), False
            yield Span(f"{text} " if kind == "tag" else text, kind)


def _kind(token: int, piece: str, vocabulary: Vocabulary) -> str:
    if token == UNK:
        return "unknown"
    if vocabulary.is_byte_fallback[token]:
        return "bytes"
    return "tag" if token != EOS and vocabulary.tag(piece) == token else "text"
