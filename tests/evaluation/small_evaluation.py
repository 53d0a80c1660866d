"""The texts of an evaluation in invented languages, with translations that have some errors."""

import dataclasses
import random

from gshard_nmt.evaluation.report import baselines, faults
from gshard_nmt.evaluation.systems import System, Systems
from gshard_nmt.evaluation.translations import TestSet

LETTERS = {
    "en": ("bcdfghlmnprst", "aeiou"),
    "fr": ("vqjlrstç", "éèêaôu"),
    "de": ("wzkßhgntr", "äöüie"),
    "ru": ("бвгджзклмнпрст", "аеиоуыя"),
}
"""The consonants and the vowels of the words of each language."""
LANGUAGES = ("fr", "de", "ru")
LINES = 60
Rows = list[tuple[str, str]]


@dataclasses.dataclass
class SmallEvaluation:
    """A run and its baselines, whose texts a test may change."""

    test: dict[str, Rows]  # sentence pairs (source, English) of each language
    outputs: dict[str, list[str]]  # the translations of the test sources of each language
    baseline_outputs: dict[str, list[str]]
    baselines: list[str]  # the languages that have a baseline

    def alarms(self) -> list[str]:
        """Returns the alarms about outputs, test sets and baselines."""
        tests = {
            tag: TestSet(tag, tag, "en", 9, *(list(side) for side in zip(*rows, strict=True)))
            for tag, rows in self.test.items()
        }
        lines = {(tag, "en"): outputs for tag, outputs in self.outputs.items()}
        main = System("run", list(tests.values()), lines=lines)
        of_baselines = [
            System(tag, [tests[tag]], lines={(tag, "en"): self.baseline_outputs[tag]})
            for tag in self.baselines
        ]
        systems = Systems(main, baselines=of_baselines)
        sections = (
            faults.checks_section(main.tests, list(baselines.alarms(systems))),
            faults.outputs_section(systems),
        )
        return [alarm for section in sections for alarm in section.alarms]


def small_evaluation(seed: int) -> SmallEvaluation:
    """Makes an evaluation without any fault. Another seed gives other words, sentences and errors."""
    rng = random.Random(seed)
    words = {tag: _words(rng, *letters) for tag, letters in LETTERS.items()}
    test = {tag: [_sentence(rng, words, tag) for _ in range(LINES)] for tag in LANGUAGES}
    outputs, baseline_outputs = (
        {tag: [_noisy(rng, row[1], words["en"], share) for row in test[tag]] for tag in LANGUAGES}
        for share in (0.2, 0.4)
    )
    return SmallEvaluation(test, outputs, baseline_outputs, list(LANGUAGES))


def _words(rng: random.Random, consonants: str, vowels: str) -> list[str]:
    """Returns 200 words of 1 to 4 syllables."""
    return [
        "".join(rng.choice(consonants) + rng.choice(vowels) for _ in range(rng.randint(1, 4)))
        for _ in range(200)
    ]


def _sentence(rng: random.Random, words: dict[str, list[str]], language: str) -> tuple[str, str]:
    """Returns a sentence and its English translation, word for word; some have names and numbers."""
    picks = rng.choices(range(200), k=rng.randint(4, 15))
    number = str(rng.randint(10, 9999))
    extra = rng.choice([["%s", number], ["<name>", number], ["<name>"], [number], []])
    place = rng.randrange(len(picks))
    sides = []
    for tag in (language, "en"):
        side = [words[tag][n] for n in picks]
        side[place:place] = extra
        sides.append(" ".join(side))
    return sides[0], sides[1]


def _noisy(rng: random.Random, text: str, words: list[str], share: float) -> str:
    """Replaces some words, as a model that is not perfect does; placeholders and numbers stay."""
    return " ".join(
        rng.choice(words) if word.isalpha() and rng.random() < share else word
        for word in text.split()
    )
