"""A report of how well the vocabularies fit each language, from a sample of its text."""

import collections
import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from gshard_nmt import files
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.text.vocabulary import UNK, Vocabulary
from gshard_nmt.terminal import table

REPORT = "vocabulary.json"
"""The name of the file in prepared data."""
LINES = 1000
"""The largest number of lines that are measured for each language."""
MUCH_FALLBACK = 0.05
"""A language with a larger part of byte fallback has a warning."""

_UNSPACED = re.compile(
    # Thai, Lao, Tibetan, Myanmar, Khmer, Japanese, Chinese: no spaces between words.
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


@dataclasses.dataclass(frozen=True)
class Fit:
    """How a vocabulary encodes the text of one language.

    The unit is "character" for a language without spaces between words. `coverage` is the part of the
    characters that have pieces, and `rare` the most frequent others.
    """

    side: str
    language: str
    lines: int
    unit: str
    tokens_per_unit: float
    byte_fallback: float
    coverage: float
    rare: str

    @property
    def warning(self) -> str:
        if self.byte_fallback <= MUCH_FALLBACK:
            return ""
        return (
            f"{self.language}: {self.byte_fallback:.1%} of the {self.side} tokens are single bytes, "
            f"because {1 - self.coverage:.2%} of the characters have no piece (such as "
            f"{self.rare[:8]}). A new vocabulary fits better with a larger "
            f"Data.{self.side}_vocabulary, Data.character_coverage or Data.vocabulary_temperature."
        )


@dataclasses.dataclass(frozen=True)
class VocabularyReport:
    """The sizes of both vocabularies, and an entry for each side and language."""

    sizes: tuple[int, int]
    fits: tuple[Fit, ...]

    @property
    def warnings(self) -> list[str]:
        return [fit.warning for fit in self.fits if fit.warning]

    def write(self, path: Path) -> None:
        facts: dict[str, Any] = {
            "sizes": dict(zip(SIDES, self.sizes, strict=True)),
            "languages": [
                {k: round(v, 6) if isinstance(v, float) else v for k, v in vars(fit).items()}
                for fit in self.fits
            ],
            "warnings": self.warnings,
        }
        text = json.dumps(facts, indent=1, ensure_ascii=False) + "\n"
        files.write(path, text.encode("utf-8", "replace"))

    def show(self, console: Console) -> None:
        header = ("side", "language", "tokens", "byte fallback", "characters with pieces")
        rows = [
            (
                fit.side,
                fit.language,
                f"{fit.tokens_per_unit:.2f} a {fit.unit}",
                f"{fit.byte_fallback:.2%}",
                f"{fit.coverage:.3%}",
            )
            for fit in self.fits
        ]
        console.print(table("vocabularies", header, rows, left=(0, 1)))
        for warning in self.warnings:
            console.print(f"warning: {warning}", soft_wrap=True, markup=False)


def fit_of(side: str, language: str, lines: Sequence[str], vocabulary: Vocabulary) -> Fit:
    measured = lines[:: max(-(-len(lines) // LINES), 1)]
    encoded = vocabulary.encode(measured)
    ids = np.fromiter(itertools.chain.from_iterable(encoded), np.int64)
    # The text as the vocabulary sees it, after its normalization.
    text = "\n".join(vocabulary.decode(encoded))
    words = text.split()
    characters = sum(map(len, words))
    # The vocabulary may write the text in other letters.
    written = sum(len(word) for line in measured for word in line.split())
    is_unspaced = 2 * len(_UNSPACED.findall("\n".join(measured))) > written
    units = written if is_unspaced else len(words)
    is_fallback = vocabulary.is_byte_fallback[ids]
    ends = np.cumsum([len(line) for line in encoded])
    with_fallback = np.searchsorted(ends, np.flatnonzero(is_fallback), side="right").tolist()
    rare = _without_pieces([encoded[line] for line in dict.fromkeys(with_fallback)], vocabulary)
    return Fit(
        side,
        language,
        len(measured),
        "character" if is_unspaced else "word",
        len(ids) / max(units, 1),
        int(is_fallback.sum()) / max(len(ids), 1),
        1 - rare.total() / max(characters, rare.total(), 1),
        "".join(character for character, _ in rare.most_common(20)),
    )


def _without_pieces(
    encoded: Sequence[Sequence[int]], vocabulary: Vocabulary
) -> collections.Counter[str]:
    """Counts the characters that are spelled as bytes. UNK counts as one character U+FFFD."""
    values = vocabulary.byte_values
    counts: collections.Counter[str] = collections.Counter()
    for ids in encoded:
        line = values[np.asarray(ids, np.int64)].tolist()
        for is_byte, run in itertools.groupby(line, lambda value: value >= 0):
            if is_byte:
                counts.update(bytes(run).decode("utf-8", "replace"))
        if unknown := list(ids).count(UNK):
            counts["\N{REPLACEMENT CHARACTER}"] += unknown
    return counts
