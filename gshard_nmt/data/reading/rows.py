"""The rows of text that every format of a corpus gives, and the files that they come from."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from gshard_nmt.errors import UserError


class SentencePair(NamedTuple):
    """A sentence and its translation, in the order of its `Input`, without newline characters.

    `score` is the number that the corpus gives to this pair, such as a score of a filter.
    """

    source: str
    target: str
    score: float | None = None


make_pair: Callable[[Iterable[object]], SentencePair] = functools.partial(
    tuple.__new__, SentencePair
)
"""Makes a SentencePair of an iterable of three values. It takes two thirds of the time of a call."""


@dataclasses.dataclass(frozen=True)
class Input:
    """A file of sentence pairs, or the two files with its sides.

    Attributes:
      subset: the name of the corpus, such as "back"; "" for the corpus without a name.
      source, target: BCP 47 tags of the languages, in the order of the rows.
      files: the files. Format "aligned" has a file for each side, and perhaps a third one with scores.
      format: "aligned", "tsv", "jsonl" or "tmx".
      name: a name that no other input of the same corpora has, such as "fr-en/train.fr".
      swapped: whether the first column of a file without names of languages is the target.
    """

    subset: str
    source: str
    target: str
    split: str
    files: tuple[Path, ...]
    format: str
    name: str
    swapped: bool = False

    def reversed(self) -> "Input":
        """Returns the input of the same files whose rows have the target first."""
        first, *others = self.files
        files = (others[0], first, *others[1:]) if others else self.files
        source, target = self.target, self.source
        return dataclasses.replace(
            self, source=source, target=target, files=files, swapped=not self.swapped
        )


def one_line(text: str) -> str:
    """Returns a text as it is, or with single spaces for all white space if it has a break or a tab."""
    if "\n" in text or "\r" in text or "\t" in text:
        return " ".join(text.split())
    return text


def score_of(value: object, where: str) -> float | None:
    """Returns a score, which is a number, its text or None, as a number or None."""
    if value is None:
        return None
    try:
        score = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise UserError(
            f"{where} has the score {str(value)[:40]!r}, which is not a number; mend the line, or remove "
            "the scores from the file."
        )
    return score


def listed(names: Sequence[object], most: int = 3) -> str:
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest
