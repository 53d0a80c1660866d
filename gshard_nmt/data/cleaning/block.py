"""What filters see: a block of rows with measures of each line, and what is known about the rows.

The measures are computed for all lines of a block together, with numpy over their characters. That is
many times as fast as Python code for each line.
"""

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.sets.corpus import SentencePair
from gshard_nmt.data.text import normal_form
from gshard_nmt.data.text.scripts import script_of, scripts_of_language

VISIBLE, DIGIT, CONTROL, PLACEHOLDER, SUSPECT, MARK = (1 << bit for bit in range(6))
"""Flags of a line: it has a visible character, a digit, a control character, a character that begins
placeholders, a character that broken encodings contain, or a combining mark."""
_KNOWN, _SPACE, _IN_FORMS = 1 << 6, 1 << 7, 1 << 8

_PLACEHOLDER_MARKS = frozenset("%{$<\uff05\uff5b\uff04\uff1c\ufe6a\ufe5b\ufe69\ufe64")
"""Their full-width and small forms too."""
WITHOUT_SPACES = ("CJK", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts that write no spaces between words. Each character counts as a word."""
_WEIGHTS = {"CJK": 3.0, "HANGUL": 2.0}
"""The number of Latin letters that say about as much as one character; 1 for other scripts."""
_INVISIBLE_CATEGORIES = ("Zs", "Zl", "Zp", "Cc", "Cf", "Cn", "Cs")
Mask = NDArray[np.bool_]
_PIECE = 8192
"""Lines that are measured at a time: the arrays of characters are many times as large as the text."""


@dataclasses.dataclass(frozen=True)
class About:
    """What filters know about the rows besides their text.

    `held_out` is uint64[hashes], sorted, of dev and test text; `overlap.held_out` makes it.
    """

    source: str
    target: str
    settings: Cleaning = dataclasses.field(default_factory=Cleaning)
    held_out: NDArray[np.uint64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint64))


# Properties of characters, by code point. They grow with the text.
_flags = np.zeros(0x110000, np.uint16)
_scripts = np.zeros(0x110000, np.uint8)
_script_numbers = {"": 0}


def _properties(lines: Sequence[str]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Returns the code point, the flags and the script of each character; a newline ends each line."""
    text = "\n".join([*lines, ""])
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    for point in np.unique(points[_flags[points] == 0]).tolist():
        character = chr(point)
        # uint8 holds 256 scripts. Unicode has fewer, but a name of a rare letter may look like one.
        number = _script_numbers.setdefault(script_of(character), min(len(_script_numbers), 255))
        _scripts[point] = number
        _flags[point] = _KNOWN | sum(flag for flag, holds in _facts(character) if holds)
    return points, _flags[points], _scripts[points]


def _facts(character: str) -> Iterator[tuple[int, bool]]:
    point, category = ord(character), unicodedata.category(character)
    yield VISIBLE, category not in _INVISIBLE_CATEGORIES
    yield DIGIT, character.isdecimal()
    is_no_character = point & 0xFFFE == 0xFFFE or 0xFDD0 <= point <= 0xFDEF or category == "Cs"
    yield CONTROL, is_no_character or (category == "Cc" and character not in "\t\n\r")
    yield PLACEHOLDER, character in _PLACEHOLDER_MARKS
    # U+FFFD, and the letters that begin a character of UTF-8 that was read as Latin-1.
    yield SUSPECT, character == "\ufffd" or 0xC2 <= point <= 0xEF
    yield MARK, category[0] == "M"
    yield _SPACE, character.isspace()
    # What `normal_form.sentence_form` keeps, and newline characters, which end lines.
    yield _IN_FORMS, (character.isalnum() and not character.isdecimal()) or character == "\n"


def _are_of(scripts: Iterable[str], numbers: NDArray[np.uint8]) -> NDArray[np.bool_]:
    chosen = np.zeros(256, bool)
    chosen[[_script_numbers[name] for name in scripts if name in _script_numbers]] = True
    return chosen[numbers]


def _measures(lines: Sequence[str], own: frozenset[str]) -> tuple[NDArray[Any], ...]:
    characters = np.fromiter(map(len, lines), np.int64, len(lines))
    points, flags, scripts = _properties(lines)
    starts = np.cumsum(characters + 1) - characters - 1

    def counts(of: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.add.reduceat(of.view(np.uint8), starts, dtype=np.int64)

    letters = counts(scripts != 0)
    own_letters = counts(_are_of(own, scripts)) if own else letters
    is_space = (flags & _SPACE) != 0
    is_word = is_space[:-1] & ~is_space[1:]
    weight = characters.astype(np.float64)
    if points.max() >= 0x0E00:  # below are the scripts with spaces and letters of length 1
        is_word |= _are_of(WITHOUT_SPACES, scripts[1:])
        for name, factor in _WEIGHTS.items():
            weight += (factor - 1) * counts(_are_of((name,), scripts))
    words = counts(np.concatenate(([not is_space[0]], is_word)))
    return np.bitwise_or.reduceat(flags, starts), characters, words, letters, own_letters, weight


def _forms(lines: Sequence[str]) -> list[str]:
    """Returns `normal_form.sentence_form` of each line.

    A pass over the characters of many lines takes a quarter of the time of a call for each line.
    """
    points, flags, _ = _properties([normal_form.folded(line).replace("\n", " ") for line in lines])
    letters = points[(flags & _IN_FORMS) != 0]
    return letters.tobytes().decode("utf-32-le", "surrogatepass").split("\n")[:-1]


class Side:
    """The lines of one side of a block, with measures of each line.

    Attributes:
      lines: the text.
      language: the BCP 47 tag.
      flags: uint16[line], VISIBLE and the other flags.
      characters: int64[line], the number of characters.
      words: int64[line], the number of words; in languages without spaces, of characters.
      letters: int64[line], the number of letters.
      own_letters: int64[line], the number of letters in the scripts of the language. It is equal to
        `letters` if these scripts are not known.
      weight: float64[line], the length in characters; a Chinese character counts as 3.
    """

    def __init__(self, lines: Iterable[str], language: str) -> None:
        """Measures the lines, at least one."""
        self.lines = list(lines)
        self.language = language
        own = scripts_of_language(language)
        pieces = zip(*(_measures(piece, own) for piece in self._pieces()), strict=True)
        self.flags, self.characters, self.words, self.letters, self.own_letters, self.weight = map(
            np.concatenate, pieces
        )

    def _pieces(self) -> Iterator[list[str]]:
        return (self.lines[n : n + _PIECE] for n in range(0, len(self.lines), _PIECE))

    @functools.cached_property
    def forms(self) -> list[str]:
        """The normal form of each line: letters in lower case; see `normal_form.sentence_form`."""
        return list(itertools.chain.from_iterable(map(_forms, self._pieces())))

    @functools.cached_property
    def near_forms(self) -> list[str]:
        """The form of each line without case, spaces and punctuation; see `normal_form.near_form`."""
        is_special = self.has(DIGIT | PLACEHOLDER | MARK) | (self.letters == 0)
        is_special |= [not unicodedata.is_normalized("NFKC", line) for line in self.lines]
        forms = self.forms.copy()
        for row in np.flatnonzero(is_special).tolist():
            forms[row] = normal_form.near_form(self.lines[row], forms[row])
        return forms

    def has(self, flag: int) -> NDArray[np.bool_]:
        return (self.flags & flag) != 0

    def keep(self, mask: NDArray[np.bool_]) -> Self:
        """Returns the lines of a mask, bool[line], without measuring them again."""
        result = object.__new__(type(self))
        for name, value in vars(self).items():
            is_list = isinstance(value, list)
            of_mask = list(itertools.compress(value, mask)) if is_list else value
            setattr(result, name, value[mask] if isinstance(value, np.ndarray) else of_mask)
        return result


class Block(tuple[SentencePair, ...]):
    """Rows of one language pair, at least one, with the measures of both sides."""

    def __new__(cls, rows: Iterable[SentencePair], source: str, target: str) -> Self:
        del source, target
        return super().__new__(cls, rows)

    def __init__(self, rows: Iterable[SentencePair], source: str, target: str) -> None:
        """Measures the rows. `source` and `target` are the tags of the languages."""
        del rows
        self.source = Side([row[0] for row in self], source)
        self.target = Side([row[1] for row in self], target)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.source, self.target

    def keep(self, mask: NDArray[np.bool_]) -> "Block":
        """Returns the rows of a mask, bool[row]."""
        if mask.all():
            return self
        result = tuple.__new__(Block, itertools.compress(self, mask))
        result.source, result.target = self.source.keep(mask), self.target.keep(mask)
        return result

    def check(
        self, candidates: NDArray[np.bool_], keeps: Callable[[str, str], bool]
    ) -> NDArray[np.bool_]:
        """Returns bool[row], true for rows that are kept: `keeps(source, target)` says so.

        It is slow, so it is asked about `candidates`, bool[row], alone. All other rows are kept.
        """
        mask = np.ones(len(self), bool)
        for row in np.flatnonzero(candidates).tolist():
            mask[row] = keeps(self.source.lines[row], self.target.lines[row])
        return mask
