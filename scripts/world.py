"""Makes a corpus of invented languages, in which it is known what a model has to learn.

    .venv/bin/python scripts/world.py --out data/world/corpus
    .venv/bin/gshard-data prepare --config world --corpus data/world/corpus --out data/world/prepared
    .venv/bin/gshard-train --config world --data data/world/prepared --workdir runs/world/moe16

Each language says the same things with words, word order and endings of its own. With
`--related` 0 or 1 a translation is determined by its source, so a perfect model reaches a loss of 0;
between them some words have two meanings. Two things are chosen. `--related` is
the share of the concepts whose word a language has from the ancestor of its family: 0 makes languages of
which each must be learned by itself, 1 makes dialects. `--pairs` says how much text there is. No
sentence is made twice on purpose, so a model cannot learn the text by heart.

The same flags make the same files. Languages have the codes qaa, qab, ..., which ISO 639 leaves free.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gshard_nmt import outputs
from gshard_nmt.errors import UserError

CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aeiou"
PARTS = {"noun": 900, "verb": 400, "adjective": 200}
"""Part of speech -> number of its concepts. Concept 0 is the most frequent (Zipf's law)."""
ORDERS = ("SVO", "SOV", "VSO", "VOS", "OVS", "OSV")
FAMILY = 4
"""The number of languages of a family."""
HELD_OUT = 200
"""The number of dev sentences, and of test sentences, of each language."""

Root = tuple[int, ...]
"""The syllables of a word: consonant times 5 plus vowel."""
Sentence = tuple[tuple[tuple[int, int, int], ...], int, int]
"""Subject and object, each (noun, adjective or -1, number), then the verb and its tense."""


@dataclasses.dataclass(frozen=True)
class Language:
    """One language: its words and the rules that make sentences of them."""

    words: dict[str, list[str]]  # part of speech -> the word of each concept
    order: str  # the order of subject, verb and object
    adjective_first: bool
    plural: str
    tenses: tuple[str, str, str]
    is_particle: bool  # plural and tense are words of their own, otherwise endings

    def say(self, sentence: Sentence) -> str:
        nouns, verb, tense = sentence
        phrases = {role: self._noun_phrase(*noun) for role, noun in zip("SO", nouns, strict=True)}
        phrases["V"] = self._marked(self.words["verb"][verb], self.tenses[tense])
        return " ".join(phrases[role] for role in self.order) + "."

    def _noun_phrase(self, noun: int, adjective: int, number: int) -> str:
        words = [self._marked(self.words["noun"][noun], self.plural if number else "")]
        if adjective >= 0:
            words.insert(0 if self.adjective_first else 1, self.words["adjective"][adjective])
        return " ".join(words)

    def _marked(self, word: str, mark: str) -> str:
        return f"{word} {mark}" if self.is_particle and mark else word + mark


def roots(generator: np.random.Generator) -> dict[str, list[Root]]:
    """Returns a root of two syllables for each concept; roots of one language differ."""
    syllables = len(CONSONANTS) * len(VOWELS)
    drawn = iter(generator.permutation(syllables**2))
    return {
        part: [divmod(int(next(drawn)), syllables) for _ in range(n)] for part, n in PARTS.items()
    }


def make_language(
    generator: np.random.Generator, ancestor: dict[str, list[Root]], related: float
) -> Language:
    """Returns a language that has the share `related` of its roots from the ancestor of its family.

    Sounds shift regularly: a permutation of consonants, the same in every word of the language.
    """
    own = roots(generator)
    shift = generator.permutation(len(CONSONANTS))

    def spell(root: Root) -> str:
        return "".join(CONSONANTS[shift[s // len(VOWELS)]] + VOWELS[s % len(VOWELS)] for s in root)

    words = {
        part: [
            spell(old if generator.random() < related else new)
            for old, new in zip(ancestor[part], own[part], strict=True)
        ]
        for part in PARTS
    }
    consonants = generator.permutation(list(CONSONANTS))
    marks = [f"{v}{c}" for v, c in zip(VOWELS, consonants, strict=False)]
    return Language(
        words=words,
        order=str(generator.choice(ORDERS)),
        adjective_first=bool(generator.integers(2)),
        plural=marks[0],
        tenses=(marks[1], marks[2], marks[3]),
        is_particle=bool(generator.integers(2)),
    )


def sentences(generator: np.random.Generator, count: int) -> Iterator[Sentence]:
    """Yields sentences whose concepts have frequencies by Zipf's law."""

    def draw(part: str, size: int) -> np.ndarray:
        weights = 1.0 / np.arange(1, PARTS[part] + 1)
        return generator.choice(PARTS[part], size=size, p=weights / weights.sum())

    nouns, numbers = draw("noun", 2 * count), generator.integers(0, 2, 2 * count)
    adjectives = np.where(generator.random(2 * count) < 0.5, draw("adjective", 2 * count), -1)
    phrases = list(zip(nouns.tolist(), adjectives.tolist(), numbers.tolist(), strict=True))
    verbs, tenses = draw("verb", count).tolist(), generator.integers(0, 3, count).tolist()
    for i in range(count):
        yield (phrases[2 * i], phrases[2 * i + 1]), verbs[i], tenses[i]


def sizes(languages: int, pairs: int) -> list[int]:
    """Returns the number of pairs of each language: a power law, as in GShard section 4.2."""
    shares = 1.0 / np.arange(1, languages + 1)
    return [max(HELD_OUT, int(pairs * share / shares.sum())) for share in shares]


def write_corpus(out: Path, languages: int, related: float, pairs: int, seed: int) -> None:
    """Writes `qaa-en/train.qaa`, `train.en`, `dev.*` and `test.*`, and so on, below `out`."""
    english = make_language(
        np.random.default_rng([seed, 0]), roots(np.random.default_rng(seed)), 0.0
    )
    for number, size in enumerate(sizes(languages, pairs)):
        ancestor = roots(np.random.default_rng([seed, 1, number % max(1, languages // FAMILY)]))
        language = make_language(np.random.default_rng([seed, 2, number]), ancestor, related)
        code = "q" + chr(ord("a") + number // 26) + chr(ord("a") + number % 26)
        folder = out / f"{code}-en"
        folder.mkdir(parents=True)
        text = np.random.default_rng([seed, 3, number])
        for split, count in (("test", HELD_OUT), ("dev", HELD_OUT), ("train", size)):
            said = list(sentences(text, count))
            for name, speaker in ((code, language), ("en", english)):
                with (folder / f"{split}.{name}").open("w") as file:
                    file.writelines(f"{speaker.say(sentence)}\n" for sentence in said)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("data/world/corpus"), help="a new folder")
    add("--languages", type=int, default=32, help="1 to 520; default 32")
    add("--related", type=float, default=0.0, help="0 to 1: common roots of a family; default 0")
    add("--pairs", type=int, default=800_000, help="of all languages, to train; default 800,000")
    add("--seed", type=int, default=1, help="default 1")
    values = parser.parse_args()
    ranges = {"languages": (1, 520), "related": (0, 1), "pairs": (1, 10**9), "seed": (0, 2**32 - 1)}
    for name, (least, most) in ranges.items():
        if not least <= (value := getattr(values, name)) <= most:
            parser.error(f"--{name} is {value}; it must be from {least} to {most}")
    if values.out.exists():
        parser.error(f"{values.out} exists; remove it, or choose another --out")
    try:
        with outputs.new_folder(values.out) as folder:
            write_corpus(folder, values.languages, values.related, values.pairs, values.seed)
    except (UserError, OSError) as error:
        parser.error(f"--out {values.out} cannot be written ({error}); choose another folder")
    except KeyboardInterrupt:
        print("interrupted; give the same command again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
