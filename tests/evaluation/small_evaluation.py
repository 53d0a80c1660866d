"""A whole evaluation that tests make by hand: a corpus, run folders and translations."""

import dataclasses
import random
from pathlib import Path

from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs
from gshard_nmt.evaluation.opening import open_systems
from gshard_nmt.evaluation.report import baselines, faults
from gshard_nmt.evaluation.systems import System
from gshard_nmt.evaluation.translations import TestSet
from gshard_nmt.run.folder import RunFolder
from tests.evaluation.run_folders import make_run

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
    """A corpus, a run and its baselines. Change what you like, then call `write`.

    Attributes:
      folder: where everything is written.
      test: sentence pairs (source, English) of each language.
      outputs, baseline_outputs: the translations of the test sources of each language.
      baselines: the languages that have a baseline.
    """

    folder: Path
    test: dict[str, Rows]
    outputs: dict[str, list[str]]
    baseline_outputs: dict[str, list[str]]
    baselines: list[str]

    @property
    def run(self) -> RunFolder:
        """The run folder."""
        return RunFolder(self.folder / "run")

    @property
    def corpus(self) -> Path:
        """The corpus folder."""
        return self.folder / "corpus"

    def write(self) -> None:
        """Writes the corpus and the run folders."""
        for language in LANGUAGES:
            for split, rows in (("train", [("a", "b")]), ("test", self.test[language])):
                write_pairs(self.corpus / f"{language}-en", split, language, "en", rows)
        digest = fingerprint([p for p in find_pairs(self.corpus) if p.language in LANGUAGES])
        make_run(self.run.path, LANGUAGES, corpus_fingerprint=digest)
        for language in self.baselines:
            make_run(self.folder / "baselines" / language, [language], corpus_fingerprint=digest)

    def translate(self, workdir, source, target, lines, checkpoint):
        """Returns the translations of a test source; `Translate` for gshard_nmt.evaluate."""
        outputs = self.outputs if workdir == self.run.path else self.baseline_outputs
        by_source = {
            row[0]: out for row, out in zip(self.test[source], outputs[source], strict=True)
        }
        return [by_source[line] for line in lines], "step 9", ""

    def alarms(self) -> list[str]:
        """Writes everything, and returns the alarms about outputs, test sets and baselines."""
        self.write()
        tests = [
            TestSet(tag, tag, "en", 9, *(list(side) for side in zip(*self.test[tag], strict=True)))
            for tag in LANGUAGES
        ]
        systems = open_systems(self.run, tests, baselines=self.folder / "baselines")

        def translated(system: System) -> System:
            own = self.outputs if system is systems.main else self.baseline_outputs
            lines = {(test.source, "en"): own[test.source] for test in system.tests}
            return dataclasses.replace(system, lines=lines)

        sections = (
            faults.checks_section(tests, list(baselines.alarms(systems))),
            faults.outputs_section(systems.each(translated)),
        )
        return [alarm for section in sections for alarm in section.alarms]


def small_evaluation(folder: Path, seed: int) -> SmallEvaluation:
    """Makes an evaluation without any fault. Another seed gives other words, sentences and errors."""
    rng = random.Random(seed)
    words = {tag: _words(rng, *letters) for tag, letters in LETTERS.items()}
    test = {tag: [_sentence(rng, words, tag) for _ in range(LINES)] for tag in LANGUAGES}
    outputs, baseline_outputs = (
        {tag: [_noisy(rng, row[1], words["en"], share) for row in test[tag]] for tag in LANGUAGES}
        for share in (0.2, 0.4)
    )
    return SmallEvaluation(folder, test, outputs, baseline_outputs, list(LANGUAGES))


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
