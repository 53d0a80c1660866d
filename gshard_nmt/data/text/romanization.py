"""Writes source text in Latin letters, so that related languages with other scripts share pieces.

SentencePiece changes characters by rules before it splits a text, and keeps the rules in its model file.
So romanization is a set of such rules: whatever reads the file romanizes, also other programs.
"""

import contextlib
import functools
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sentencepiece
from anyascii import anyascii

from gshard_nmt.data.text.scripts import script_of

_KEPT = ("CJK", "HANGUL")
"""Scripts without a letter for each sound or a cousin to share it with. Pinyin would merge many words."""
_VOICED = "\u3099\u309a"
"""The marks of kana, which have no script of their own."""
_JOINER = "\u200d"
"""A sign that changes the shape of letters, and not the letters."""
_ALEF = {"\u0627": "a"}
"""A letter for which anyascii has nothing."""
_STOP = "\u0294"
"""A Latin letter for the apostrophes of anyascii: those would cut a word for SentencePiece."""


@contextlib.contextmanager
def normalization_arguments(name: str) -> Iterator[dict[str, Any]]:
    if name != "latin":
        yield {"normalization_rule_name": name}
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "latin.tsv"
        file.write_text(rules(), encoding="utf-8")
        yield {"normalization_rule_tsv": str(file)}


def rules() -> str:
    """Returns the rules of a normalization, as SentencePiece reads them from a file.

    They are those of `nmt_nfkc` for one character. Then a letter with its marks and a digit become
    ASCII (package `anyascii`; `ж` is `zh`, `é` is `e`). Chinese, Japanese and Korean stay. Each letter
    has its equivalent without regard to its neighbors, so this is less exact than a romanizer that knows
    the languages, such as uroman (Hermjakob et al. 2018).

    The rules are a line each: the code points of the text, a tab, and those that replace it.
    """
    return "".join(f"{_code_points(old)}\t{_code_points(new)}\n" for old, new in _rules().items())


def romanized(text: str) -> str:
    """Returns a text as the rules make it, but for those of several characters."""
    return text.translate(_characters())


@functools.cache
def _characters() -> dict[int, str]:
    return {ord(old): new for old, new in _rules().items() if len(old) == 1}


@functools.cache
def _rules() -> dict[str, str]:
    return {old: new for old, new in sorted(_replacements()) if old != new}


def _replacements() -> Iterator[tuple[str, str]]:
    codes = map(chr, range(1, sys.maxunicode + 1))
    # Neither reserved, private, nor half of a pair of UTF-16.
    characters = [c for c in codes if unicodedata.category(c) not in ("Cn", "Co", "Cs")]
    plain = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc",
        add_dummy_prefix=False,
        escape_whitespaces=False,
        remove_extra_whitespaces=False,
    )
    for character, text in zip(characters, plain.normalize(characters), strict=True):
        latin = "".join(map(_romanized, text))
        yield character, latin
        # The longest text that has a rule is replaced. So a letter whose marks stand apart is the same.
        apart = unicodedata.normalize("NFD", character)
        if len(apart) > 1 and "".join(map(_romanized, apart)) != latin:
            yield apart, latin


@functools.cache
def _romanized(character: str) -> str:
    if character == _JOINER:
        return ""
    category = unicodedata.category(character)
    is_mark = category.startswith("M")
    is_text = is_mark or category.startswith("L") or category == "Nd"
    if not is_text or character in _VOICED or script_of(character) in _KEPT:
        return character
    latin = _ALEF.get(character, anyascii(character))
    stop = "" if is_mark else _STOP
    return latin.replace("'", stop).replace("`", stop) or ("" if is_mark else character)


def _code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)
