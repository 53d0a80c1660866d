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

VISIBLE, DIGIT, CONTROL, PLACEHOLDER, SUSPECT, MARK, VARIANT = (1 << bit for bit in range(7))
"""Flags of a line: it has a visible character, a digit, a control character, a character that begins
placeholders, a character that broken encodings contain, a combining mark, or one that
`normal_form.folded` replaces, alone or together with the letter before it."""
_KNOWN, _SPACE = 1 << 7, 1 << 8

_PLACEHOLDER_MARKS = frozenset("%{$<\uff05\uff5b\uff04\uff1c\ufe6a\ufe5b\ufe69\ufe64")
"""Their full-width and small forms too."""
_WITHOUT_SPACES = ("CJK", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
"""Scripts that write no spaces between words. Each character counts as a word."""
_WEIGHTS = {"CJK": 3.0, "HANGUL": 2.0}
"""The number of Latin letters that say about as much as one character; 1 for other scripts."""
_INVISIBLE_CATEGORIES = ("Zs", "Zl", "Zp", "Cc", "Cf", "Cn", "Cs")


@dataclasses.dataclass(frozen=True)
class About:
    """What filters know about the rows besides their text.

    Attributes:
      source, target: the BCP 47 tags of the languages of the two sides.
      subset: the name of the corpus; "" for the main one.
      settings: the limits.
      held_out: uint64[hashes] sorted, of dev and test text; `overlap.held_out` makes it.
    """

    source: str
    target: str
    subset: str = ""
    settings: Cleaning = dataclasses.field(default_factory=Cleaning)
    held_out: NDArray[np.uint64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint64))


class _Characters:
    """Tables of the properties of characters, by code point. They grow with the text."""

    def __init__(self) -> None:
        self.flags = np.zeros(0x110000, np.uint16)
        self.scripts = np.zeros(0x110000, np.uint8)
        # What `normal_form.sentence_form` keeps, and newline characters, which end lines.
        self.in_forms = np.zeros(0x110000, bool)
        self._numbers = {"": 0}

    def learn(self, points: NDArray[np.uint32]) -> None:
        unknown = points[self.flags[points] == 0]
        if len(unknown):
            for point in np.unique(unknown).tolist():
                self._add(point, chr(point))

    def _add(self, point: int, character: str) -> None:
        # uint8 holds 256 scripts. Unicode has fewer, but a name of a rare letter may look like one.
        number = self._numbers.setdefault(script_of(character), min(len(self._numbers), 255))
        self.scripts[point] = number
        category = unicodedata.category(character)
        flags = _KNOWN
        flags |= 0 if category in _INVISIBLE_CATEGORIES else VISIBLE
        flags |= DIGIT if character.isdecimal() else 0
        flags |= _SPACE if character.isspace() else 0
        is_control = category == "Cc" and character not in "\t\n\r"
        is_no_character = point & 0xFFFE == 0xFFFE or 0xFDD0 <= point <= 0xFDEF
        flags |= CONTROL if is_control or is_no_character or category == "Cs" else 0
        flags |= PLACEHOLDER if character in _PLACEHOLDER_MARKS else 0
        # U+FFFD, and the letters that begin a character of UTF-8 that was read as Latin-1.
        flags |= SUSPECT if character == "\ufffd" or 0xC2 <= point <= 0xEF else 0
        flags |= MARK if category[0] == "M" else 0
        is_part = ord(unicodedata.normalize("NFD", character)[0]) in _joining_parts()
        flags |= VARIANT if is_part or _has_other_letters(character) else 0
        self.flags[point] = flags
        is_letter = character.isalnum() and not character.isdecimal()
        self.in_forms[point] = is_letter or character == "\n"

    def numbers(self, scripts: Iterable[str]) -> NDArray[np.bool_]:
        chosen = np.zeros(256, bool)
        chosen[[self._numbers[name] for name in scripts if name in self._numbers]] = True
        return chosen


@functools.cache
def _joining_parts() -> frozenset[int]:
    """Returns the characters that NFC joins with the one before: accents, parts of Korean syllables."""
    pairs = (unicodedata.decomposition(chr(point)).split() for point in range(0xA0, 0x1D200))
    accents = {int(pair[1], 16) for pair in pairs if len(pair) == 2 and pair[0][0] != "<"}
    return frozenset(accents | set(range(0x1160, 0x1200)))


def _has_other_letters(character: str) -> bool:
    """Returns whether `normal_form.folded` gives a character other letters than lower case does."""
    lower = character.casefold()
    if normal_form.folded(character) == lower:
        return False
    letters = [c for c in lower if c.isalnum() and not c.isdecimal()]
    return normal_form.sentence_form(character) != "".join(letters)


_characters = _Characters()
_PIECE = 8192  # lines that are measured at a time


def _measures(lines: Sequence[str], own: frozenset[str]) -> tuple[NDArray[Any], ...]:
    characters = np.fromiter(map(len, lines), np.int64, len(lines))
    # A newline after each line: `reduceat` needs at least one character of each line.
    text = "\n".join([*lines, ""])
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    starts = np.zeros(len(lines), np.int64)
    np.cumsum(characters[:-1] + 1, out=starts[1:])
    _characters.learn(points)
    flags, scripts = _characters.flags[points], _characters.scripts[points]

    def counts(of: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.add.reduceat(of.view(np.uint8), starts, dtype=np.int64)

    letters = counts(scripts != 0)
    own_letters = counts(_characters.numbers(own)[scripts]) if own else letters
    is_space = flags >= _SPACE
    is_word = is_space[:-1] & ~is_space[1:]
    weight = characters.astype(np.float64)
    if points.max() >= 0x0E00:  # below are the scripts with spaces and letters of length 1
        is_word |= _characters.numbers(_WITHOUT_SPACES)[scripts[1:]]
        for name, factor in _WEIGHTS.items():
            weight += (factor - 1) * counts(_characters.numbers((name,))[scripts])
    words = counts(np.concatenate(([not is_space[0]], is_word)))
    flags_of_lines = np.bitwise_or.reduceat(flags, starts)
    return flags_of_lines, characters, words, letters, own_letters, weight


def _forms(lines: Sequence[str]) -> list[str]:
    """Returns `normal_form.sentence_form` of each line. No line has placeholders.

    A pass over the characters of many lines takes a quarter of the time of a call for each line.
    """
    text = "\n".join(lines)
    if text.count("\n") != len(lines) - 1:
        text = "\n".join([line.replace("\n", " ") for line in lines])
    points = np.frombuffer(text.casefold().encode("utf-32-le", "surrogatepass"), np.uint32)
    _characters.learn(points)
    letters = points[_characters.in_forms[points]]
    return letters.tobytes().decode("utf-32-le", "surrogatepass").split("\n")


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

    flags: NDArray[np.uint16]
    characters: NDArray[np.int64]
    words: NDArray[np.int64]
    letters: NDArray[np.int64]
    own_letters: NDArray[np.int64]
    weight: NDArray[np.float64]
    _ARRAYS = ("flags", "characters", "words", "letters", "own_letters", "weight")

    def __init__(self, lines: Sequence[str], language: str) -> None:
        """Measures the lines. `lines` is not empty."""
        self.lines = lines
        self.language = language
        # In pieces, because the arrays of characters are many times as large as the text.
        pieces = [
            _measures(lines[start : start + _PIECE], scripts_of_language(language))
            for start in range(0, len(lines), _PIECE)
        ]
        for name, arrays in zip(self._ARRAYS, zip(*pieces, strict=True), strict=True):
            setattr(self, name, np.concatenate(arrays))

    @functools.cached_property
    def forms(self) -> list[str]:
        """The normal form of each line: letters in lower case; see `normal_form.sentence_form`."""
        lines = list(self.lines)
        for row in np.flatnonzero(self.has(PLACEHOLDER | VARIANT)).tolist():
            lines[row] = normal_form.folded(lines[row])
        pieces = [_forms(lines[start : start + _PIECE]) for start in range(0, len(lines), _PIECE)]
        return list(itertools.chain.from_iterable(pieces))

    @functools.cached_property
    def near_forms(self) -> list[str]:
        """The form of each line without case, spaces and punctuation; see `normal_form.near_form`."""
        special = (self.flags & (DIGIT | PLACEHOLDER | MARK | VARIANT)) != 0
        special |= self.letters == 0
        forms = self.forms.copy()
        for row in np.flatnonzero(special).tolist():
            forms[row] = normal_form.near_form(self.lines[row], forms[row])
        return forms

    def has(self, flag: int) -> NDArray[np.bool_]:
        return (self.flags & flag) != 0

    def keep(self, mask: NDArray[np.bool_]) -> Self:
        """Returns the lines of a mask, bool[line], without measuring them again."""
        result = object.__new__(type(self))
        result.language = self.language
        result.lines = list(itertools.compress(self.lines, mask))
        for name in self._ARRAYS:
            setattr(result, name, getattr(self, name)[mask])
        for name in ("forms", "near_forms"):
            if name in self.__dict__:
                setattr(result, name, list(itertools.compress(getattr(self, name), mask)))
        return result


class Block(Sequence[SentencePair]):
    """Rows of one language pair, with the measures of both sides; for filters, a sequence of rows."""

    def __init__(self, rows: Sequence[SentencePair], source: str, target: str) -> None:
        """Measures the rows, at least one. `source` and `target` are the tags of the languages."""
        self.rows = list(rows)
        self.source = Side([row[0] for row in self.rows], source)
        self.target = Side([row[1] for row in self.rows], target)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.source, self.target

    def keep(self, mask: NDArray[np.bool_]) -> Self:
        """Returns the rows of a mask, bool[row]."""
        if mask.all():
            return self
        result = object.__new__(type(self))
        result.rows = list(itertools.compress(self.rows, mask))
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

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[SentencePair]:
        return iter(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]
