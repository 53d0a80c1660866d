"""Variations of a sentence pair, as people type text: capitals, emoji, addresses, typing errors.

Each is a function of a pair and a generator of random numbers. It returns the pair as it is if it has
nothing to change. Text to protect (see `protection`) changes in `numbers` alone.
"""

import collections
import dataclasses
import random
import re
from collections.abc import Callable
from typing import Self

from gshard_nmt.data.config import AUGMENTATIONS
from gshard_nmt.data.text.capitals import upper
from gshard_nmt.data.text.protection import MOST, put_back, spans, take_out

Spans = list[tuple[int, int]]

_LETTER = r"[^\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
"""A letter or digit of a script that has spaces between words."""
_COPIED = re.compile(rf"{_LETTER}(?:{_LETTER}|[.+-])+{_LETTER}")
_WORD = re.compile(r"[^\W\d_]{4,}")
_DIGITS = re.compile(r"[0-9]+(?:[.,:][0-9]+)*")

_EMOJI = (
    "👍👎👌👏🙏💪👋😀😁😂😃😄😅😉😊😍😎😢😭😡🤔🙄🎉🎁🎵💔⭐🔥✅❌✔✖⚠☎📁📄📎📷📞🔒🔑🔍💾⏰🚀🌍☀🍕"
    "→←©®•★✓§°"
)
_AROUND_EMOJI = ("{t} {v}", "{t} {v}", "{t}{v}", "{v} {t}", "{v}")
_VALUES = (
    "#.#.# v#.# #.#.#.# 1##.##.#.## ##.#.#.#:#### 10.#.#.#/## fe80::#### 0x#### # ##.#% #### #######"
    r" /aa/aaa/aaaa /aaa/aaaa.aaa aaaaa.txt aaaa_aaa.pdf ~/.aaaa C:\Aaaaa\aaa aaa-#.zip aaaa() AAA_AAAA"
    " https://aaaaa.aa/aaa?a=# www.aaaaaa.com aaaa@aaaa.org aa.aaaaa#@aaaaaa.aa --aaaa --aaa-aaaa aaa_aaa"
    " %s %s %d %i %1 %#$s %#$d %(aaaa)s {aaaa} {#} {{aaaa}} ${aaaa} $AAAA <aaaa> <a> </a> &quot; &lt;"
    ' ? ! ... () *** - — / & "'
)
"""Patterns of values: # is a digit, a and A are letters."""
_CHARACTERS = {"#": "123456789", "a": "abcdefghijklmnoprstuvw", "A": "ABCDEFGHIKLMNOPRSTUVW"}
_AROUND_VALUES = (
    *("{t} {v}", "{t}: {v}", '{t} "{v}"', "{t} ({v})", "{t} {v}."),
    *("{v} {t}", "{v}: {t}", "({v}) {t}", "{t} {v} {w}", "{v} {t} {w}", "{v}"),
)


@dataclasses.dataclass(frozen=True)
class Pair:
    """A sentence pair and its two languages. A symbol is to stand for each of the `spans` of a side."""

    source: str
    target: str
    languages: tuple[str, str] = ("", "")
    spans: tuple[Spans, Spans] = dataclasses.field(default=([], []))

    @property
    def texts(self) -> tuple[str, str]:
        return self.source, self.target

    def with_texts(self, source: str, target: str) -> Self:
        return dataclasses.replace(self, source=source, target=target)


Draw = random.Random


def numbers(pair: Pair, draw: Draw) -> Pair:
    """Changes the digits of numbers that both sides have, also in codes and addresses."""
    common = set(_DIGITS.findall(pair.source)) & set(_DIGITS.findall(pair.target))
    # One file is not like two files.
    new = {old: re.sub("[2-9]", lambda _: draw.choice("23456789"), old) for old in sorted(common)}
    return pair.with_texts(*(_DIGITS.sub(lambda m: new.get(m[0], m[0]), t) for t in pair.texts))


def values(pair: Pair, draw: Draw) -> Pair:
    """Adds an address, a placeholder, a number or another code on both sides, or replaces both by it."""
    filled = [
        "".join(draw.choice(_CHARACTERS.get(character, character)) for character in pattern)
        for pattern in draw.choices(_VALUES.split(), k=2)
    ]
    return _put(pair, draw.choice(_AROUND_VALUES), *filled)


def emoji(pair: Pair, draw: Draw) -> Pair:
    """Adds one to three emoji or symbols on both sides, or replaces both by them."""
    is_rare = draw.random() < 0.3
    character = chr(draw.randrange(0x1F300, 0x1F650)) if is_rare else draw.choice(_EMOJI)
    return _put(pair, draw.choice(_AROUND_EMOJI), character * draw.choice((1, 1, 1, 2, 3)))


def _put(pair: Pair, pattern: str, first: str, second: str = "") -> Pair:
    return pair.with_texts(*(pattern.format(t=text, v=first, w=second) for text in pair.texts))


def typos(pair: Pair, draw: Draw) -> Pair:
    """Makes one or two typing errors in words of the source."""
    text = pair.source
    for _ in range(draw.choice((1, 1, 2))):
        words = [match.span() for match in _WORD.finditer(text) if _is_free(match, spans(text))]
        if words:
            start, end = draw.choice(words)
            place = draw.randrange(start, end - 1)
            left, right = text[place], text[place + 1]
            typed = (right + left, left, left * 2 + right, f"{left} {right}", f"{left}\xad{right}")
            text = text[:place] + draw.choice(typed) + text[place + 2 :]
    return pair.with_texts(text, pair.target)


def _is_free(match: re.Match[str], taken: Spans) -> bool:
    return not any(start < match.end() and match.start() < end for start, end in taken)


def first_letter(pair: Pair, _: Draw) -> Pair:
    """Makes the first letters of both sides small if both are capitals, or the other way round."""
    if all(text[:1].isupper() and text[1:2].islower() for text in pair.texts):
        if any(text[0] in "Iİ" for text in pair.texts):
            return pair  # the small letter depends on the language
        return pair.with_texts(*(text[0].lower() + text[1:] for text in pair.texts))
    if all(text[:1].islower() and 0 not in dict(spans(text)) for text in pair.texts):
        sides = zip(pair.texts, pair.languages, strict=True)
        source, target = (upper(text[0], language) + text[1:] for text, language in sides)
        return pair.with_texts(source, target) if source != pair.source else pair
    return pair


def title(pair: Pair, _: Draw) -> Pair:
    """Makes the first letter of each word on both sides a capital, if the source has such letters."""
    return _cased(pair, re.compile(r"(?<!\S)\w"))


def capitals(pair: Pair, _: Draw) -> Pair:
    """Writes both sides in capitals, if the source has such letters."""
    return _cased(pair, re.compile(r".+"))


def _cased(pair: Pair, part: re.Pattern[str]) -> Pair:
    source, target = map(_in_capitals, pair.texts, pair.languages, [part, part])
    return pair.with_texts(source, target) if source != pair.source else pair


def _in_capitals(text: str, language: str, part: re.Pattern[str]) -> str:
    """Writes all matches of a pattern in capitals, but not what must not change."""
    around, protected = take_out(text, found := spans(text), len(found))
    changed = [part.sub(lambda match: upper(match[0], language), text) for text in around]
    return put_back(changed, protected)


def placeholders(pair: Pair, _: Draw) -> Pair:
    """Lets symbols stand for all that must not change, if it is equal on both sides."""
    found = (spans(pair.source), spans(pair.target))
    values = [sorted(take_out(*side)[1]) for side in zip(pair.texts, found, strict=True)]
    is_equal = values[0] == values[1] and max(map(len, found)) <= MOST
    return dataclasses.replace(pair, spans=found) if is_equal else pair


def copies(pair: Pair, draw: Draw) -> Pair:
    """Lets a symbol stand for a word that both sides have once, such as a name."""
    places = []
    for text, known in zip(pair.texts, pair.spans, strict=True):
        taken = [*known, *spans(text)]
        words = collections.defaultdict(list)
        for match in _COPIED.finditer(text):
            if _is_free(match, taken):
                words[match[0]].append(match.span())
        places.append({word: found[0] for word, found in words.items() if len(found) == 1})
    common = sorted(places[0].keys() & places[1].keys())
    if not common or len(pair.spans[0]) == MOST:
        return pair
    word = draw.choice(common)
    source, target = (sorted([*s, f[word]]) for s, f in zip(pair.spans, places, strict=True))
    return dataclasses.replace(pair, spans=(source, target))


VARIATIONS: dict[str, Callable[[Pair, Draw], Pair]] = {
    name: globals()[name] for name in AUGMENTATIONS
}
"""All variations, in the order in which a pair gets several of them."""
