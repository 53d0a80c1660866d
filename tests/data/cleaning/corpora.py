"""A small corpus of invented languages, whose sentences translate each other word by word."""

import random
from pathlib import Path

from gshard_nmt.data.sets.corpus import write_pairs

LETTERS = {
    "fr": ("bcdfjlmnprstv", "aeéèiouàê"),
    "de": ("bdfghklnrstwzß", "aeiouäöü"),
    "ru": ("бвгдзклмнпрст", "аеиоуыя"),
}
_ENGLISH = ("bdfghklmnprstwy", "aeiou")
_COMMON = ["the", "of", "and", "to", "is", "in", "for", "with"]
Rows = list[tuple[str, str]]


def _words(letters: tuple[str, str], seed: str) -> list[str]:
    chance = random.Random(seed)
    consonants, vowels = letters
    return [
        "".join(chance.choice(consonants) + chance.choice(vowels) for _ in range(1 + number % 4))
        for number in range(400)
    ]


WORDS = {"en": _COMMON + _words(_ENGLISH, "en")} | {
    language: _words(letters, language) for language, letters in LETTERS.items()
}


def sentences(language: str, number: int, seed: str) -> Rows:
    """Returns pairs of a sentence and its English translation, of very different lengths."""
    chance = random.Random(seed)
    rows = []
    for _ in range(number):
        ids = [
            chance.choice((chance.randrange(len(_COMMON)), chance.randrange(400)))
            for _ in range(chance.randrange(4, 24))
        ]
        rows.append(tuple(" ".join(WORDS[tag][i] for i in ids) for tag in (language, "en")))
    return rows


def rows_of(language: str) -> dict[str, Rows]:
    """Returns the clean rows of each split of a language."""
    sizes = {"train": 400, "dev": 60, "test": 40}
    return {split: sentences(language, n, f"{language} {split}") for split, n in sizes.items()}


def write(folder: Path, language: str, rows: dict[str, Rows]) -> None:
    """Writes the splits of a language."""
    for split, pairs in rows.items():
        write_pairs(folder / f"{language}-en", split, language, "en", pairs)


def write_corpus(folder: Path) -> None:
    """Writes a clean corpus."""
    for language in LETTERS:
        write(folder, language, rows_of(language))
