"""Lines that are too long for the model: split into pieces, and their translations joined.

A line is split at the ends of its sentences. A sentence that is still too long is split at commas and
the like, then at spaces, then anywhere: no part of a line is lost. The marks are those of many scripts.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gshard_nmt.data.reading.rows import listed

Measure = Callable[[Sequence[str]], list[int]]
"""Returns the length of each text in tokens, with everything that the encoder reads."""

_CLOSERS = "\"'\u2019\u201d\u00bb\u203a)\\]}\u300d\u300f\u3011\u300b\u3009\u3015\uff09\uff3d\uff63"
"""Quotation marks and brackets that still belong to the sentence before them."""

_SENTENCE = (
    # A mark of these scripts ends a sentence with or without a space: Chinese and Japanese, Devanagari,
    # Urdu, Arabic, Armenian, Ethiopic, Burmese, Khmer, Tibetan, Greek, Mongolian, Ol Chiki, N'Ko.
    "\u3002\uff01\uff1f\uff61\uff0e\u0964\u0965\u06d4\u061f\u0589\u1362\u1367\u1368\u104b\u17d4\u17d5"
    "\u0f0d\u0f0e\u037e\u1803\u1809\u1c7e\u1c7f\uabeb\u07f9\u203c\u2047\u2048\u2049"
)
_CLAUSE = (
    "\u3001\uff0c\uff1b\uff1a\u060c\u061b\u104a\u1363\u1364\u1365\u1366\u055d\u1802\u1808\u2014"
)

_SENTENCE_END = re.compile(
    rf"(?:[{_SENTENCE}]+[.!?\u2026]*[{_CLOSERS}]*\s*"  # no space is needed
    # A space is needed: 3.14 and example.org are no ends. A run of marks is tried once, from its start.
    rf"|(?<![.!?\u2026])[.!?\u2026]++[{_CLOSERS}]*+\s+)"
)
_CLAUSE_END = re.compile(rf"(?:[{_CLAUSE}]+[{_CLOSERS}]*\s*|[,;:\u00b7][{_CLOSERS}]*\s+)")
_WORD_END = re.compile(r"\s+")

_ABBREVIATIONS = """
mr mrs ms dr prof rev hon gen col sgt capt lt st vs cf al fig figs eq eqs sec ch vol ed
eds pp approx jr sr inc ltd co corp dept univ jan feb mar apr jun jul aug sep sept oct nov dec
nr art abs abb bd bzw ca evtl ggf inkl exkl vgl hrsg hr fr str tel min max mio mrd mme mlle mm
av env éd sra srta lic ud uds ing dott sig sigg pag bijv mevr dhr bl kl ev evt ikke гл рис ул
табл стр им тов см ср др т проф акад тыс млн млрд
"""
"""Words whose full stop does not end a sentence, without it, in lower case: English, German, French,
Spanish, Portuguese, Italian, Dutch, Scandinavian, Russian."""


def split(line: str, measure: Measure, limit: int) -> list[str]:
    """Splits a line into pieces that have at most `limit` tokens each; the line itself if it fits.

    The pieces hold all characters of the line, in order, except spaces between two pieces. A single
    character is never split, even if it has more tokens.
    """
    if measure([line])[0] <= limit:
        return [line]
    sentences = [sentence.strip() for sentence in _parts(line, _SENTENCE_END)]
    pieces: list[str] = []
    for sentence, length in zip(sentences, measure(sentences), strict=True):
        if length <= limit:
            pieces.append(sentence)
        else:
            pieces += _split_sentence(sentence, measure, limit, [_CLAUSE_END, _WORD_END])
    return pieces


def separator(language: str) -> str:
    """Returns what stands between two sentences of a language, a BCP 47 tag: a space, or nothing.

    Chinese and Japanese have no space there, but zh-Latn has. Thai, Lao, Khmer, Burmese and Tibetan have
    none between words, but they have one between sentences.
    """
    subtags = language.lower().replace("_", "-").split("-")
    return "" if subtags[0] in _UNSPACED and "latn" not in subtags else " "


_UNSPACED = ("zh", "ja", "yue", "wuu", "hak", "nan", "gan", "hsn", "cmn", "lzh", "jpn", "zho")


class Translation(NamedTuple):
    """A translation of a piece: its score, divided by the length norm, and its tokens, EOS included."""

    text: str
    score: float
    length: int


def join(
    pieces: Sequence[Sequence[Translation]],
    space: str,
    length_norms: Callable[[int], Sequence[float] | np.ndarray],
) -> list[Translation]:
    """Joins the n-th best translations of all pieces of a line, for each n that all pieces have.

    The score is the sum of the log-probabilities, divided by the length norm of the sum of the lengths.
    `length_norms` returns the norm of each number of tokens, up to its argument.
    """
    joined = []
    for parts in zip(*pieces, strict=False):
        total = sum(part.length for part in parts)
        norms = length_norms(total)
        log_prob = sum(part.score * float(norms[part.length]) for part in parts)
        text = space.join(part.text for part in parts if part.text)
        joined.append(Translation(text, log_prob / float(norms[total]), total))
    return joined


def pieces_note(numbers: Sequence[int], longest: int, what: str = "line") -> str:
    """Returns the sentence that tells a user which lines, or other texts, were translated in pieces."""
    return f"more than {longest} tokens, so translated in pieces: {_named(what, numbers)}."


def lost_note(lost: Mapping[int, str], what: str = "line") -> str:
    """Returns the sentence that tells a user which lines have lost a value, such as the given ones."""
    value = next(iter(lost.values()))[:40]
    return f"text that must not change is lost, such as {value!r}: {_named(what, [*lost])}."


def _named(what: str, numbers: Sequence[int]) -> str:
    return f"{what}{'s' * (len(numbers) > 1)} {listed([f'{n:,}' for n in numbers], 5)}"


def _parts(text: str, end: re.Pattern[str]) -> Iterator[str]:
    """Yields the parts of a text up to each end. No part is empty; joined, they are the text."""
    start = 0
    for match in end.finditer(text):
        if end is _SENTENCE_END and not _ends_sentence(text, match):
            continue
        if text[start : match.end()].strip():
            yield text[start : match.end()]
            start = match.end()
    if text[start:].strip():
        yield text[start:]


def _ends_sentence(text: str, match: re.Match[str]) -> bool:
    """Returns whether a mark ends a sentence, and not an abbreviation or a number."""
    rest = text[match.end() : match.end() + 1]
    if text[match.start()] in _SENTENCE:
        return not (match.group() == "\uff0e" and rest.isdecimal())
    if rest.islower():
        return False
    if not match.group().startswith(".") or match.group().startswith(".."):
        return True
    before = re.search(
        r"[^\s(\[\"'\u00ab\u201c\u201e]*$", text[max(0, match.start() - 40) : match.start()]
    )
    word = before.group().lower() if before else ""
    if word.isdecimal():
        return len(word) > 2  # "3. Oktober" goes on, "in 1990. Then" does not
    if word in ("no", "nos"):
        return not rest.isdecimal()  # "No. 5"
    is_initial = len(word) == 1 and word.isalpha()
    return not (is_initial or re.fullmatch(r"(\w\.)+\w", word) or word in _ABBREVIATIONS.split())


def _split_sentence(
    sentence: str, measure: Measure, limit: int, ends: Sequence[re.Pattern[str]]
) -> list[str]:
    """Splits a sentence that is too long, at the first of `ends` that occurs in it, or anywhere.

    The parts between two ends are put together again as long as they fit.
    """
    if not ends:
        return _split_anywhere(sentence.strip(), measure, limit)
    parts = list(_parts(sentence, ends[0]))
    (always,) = measure([""])  # the end of sentence and the tags count once in each piece
    pieces = [""]
    tokens = always
    for part, length in zip(parts, measure(parts), strict=True):
        if pieces[-1] and tokens + length - always > limit:
            pieces.append("")
            tokens = always
        pieces[-1] += part
        tokens += length - always
    result: list[str] = []
    # A text may have more tokens than its parts, so every piece is measured.
    for piece, length in zip(pieces, measure(pieces), strict=True):
        if length <= limit:
            result.append(piece.strip())
        else:
            result += _split_sentence(piece, measure, limit, ends[1:])
    return result


def _split_anywhere(text: str, measure: Measure, limit: int) -> list[str]:
    """Splits a text into halves until each part fits, if possible not within a character cluster."""
    if len(text) <= 1 or measure([text])[0] <= limit:
        return [text]
    start = len(text) // 2
    middle = next((n for n in range(start, len(text)) if not _joins_previous(text, n)), start)
    halves = text[:middle], text[middle:]
    return [piece for half in halves for piece in _split_anywhere(half, measure, limit)]


def _joins_previous(text: str, index: int) -> bool:
    """Returns whether a character is drawn together with the one before it, such as an accent."""
    character = text[index]
    return (
        unicodedata.category(character) in ("Mn", "Mc", "Me")
        or character == "\u200d"
        or text[index - 1] == "\u200d"
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin tones
    )
