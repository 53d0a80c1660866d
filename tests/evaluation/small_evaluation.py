"""A whole evaluation that tests make by hand: a corpus, run folders and translations."""

import dataclasses
import json
import random
from pathlib import Path

from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.evaluation.report import faults, overlap
from gshard_nmt.evaluation.report.report import Evaluation, Request
from gshard_nmt.evaluation.systems.opening import Others, open_systems
from gshard_nmt.evaluation.systems.systems import System
from gshard_nmt.evaluation.texts.translations import TestSet
from gshard_nmt.run.folder import RunFolder
from tests.run.facts import budget_facts, data_facts

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
      train, test: sentence pairs (source, English) of each language.
      outputs, baseline_outputs: the translations of the test sources of each language.
      tokens, baseline_tokens: the training tokens that each model saw of each language.
      baseline_pairs: the training pairs of each baseline; the run has 4 of each language.
      log: the lines of metrics.jsonl of the run.
    """

    folder: Path
    train: dict[str, Rows]
    test: dict[str, Rows]
    outputs: dict[str, list[str]]
    baseline_outputs: dict[str, list[str]]
    tokens: dict[str, int]
    baseline_tokens: dict[str, int]
    baseline_pairs: dict[str, int]
    log: list[dict[str, float]]

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
            folder = self.corpus / f"{language}-en"
            folder.mkdir(parents=True, exist_ok=True)
            for split, rows in (("train", self.train[language]), ("test", self.test[language])):
                for side, tag in enumerate((language, "en")):
                    text = "".join(f"{row[side]}\n" for row in rows)
                    (folder / f"{split}.{tag}").write_text(text, encoding="utf-8")
        digest = fingerprint([p for p in find_pairs(self.corpus) if p.language in LANGUAGES])
        self._write_run(self.run.path, data_facts(LANGUAGES), digest, self.tokens, self.log)
        for language, tokens in self.baseline_tokens.items():
            folder = self.folder / "baselines" / language
            facts = data_facts([language])
            facts["pairs"][0]["train_pairs"] = self.baseline_pairs[language]
            self._write_run(folder, facts, digest, {language: tokens}, [])

    def _write_run(self, folder, facts, digest, tokens, log) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "data.json").write_text(json.dumps(facts | {"corpus_fingerprint": digest}))
        (folder / "budget.json").write_text(json.dumps(budget_facts(tokens)))
        (folder / "config.gin").write_text("Model.experts = 8\n")
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in log))

    def translate(self, workdir, source, target, lines, checkpoint):
        """Returns the translations of a test source; `Translate` for gshard_nmt.evaluate."""
        outputs = self.outputs if workdir == self.run.path else self.baseline_outputs
        by_source = {
            row[0]: out for row, out in zip(self.test[source], outputs[source], strict=True)
        }
        return [by_source[line] for line in lines], "step 9", ""

    def alarms(self) -> list[str]:
        """Writes everything, and returns the alarms about outputs, test sets, systems and overlap."""
        self.write()
        pairs = {pair.language: [pair] for pair in find_pairs(self.corpus)}
        tests = [
            TestSet(tag, tag, "en", 9, *(list(side) for side in zip(*self.test[tag], strict=True)))
            for tag in LANGUAGES
        ]
        systems = open_systems(self.run, tests, Others(), self.folder / "baselines")

        def translated(system: System) -> System:
            own = self.outputs if system is systems.main else self.baseline_outputs
            lines = {(test.source, "en"): own[test.source] for test in system.tests}
            return dataclasses.replace(system, lines=lines)

        systems = systems.each(translated)
        training = overlap.read_training(tests, pairs)
        evaluation = Evaluation(systems, Request(), systems, training)
        sections = (faults.checks_section, faults.outputs_section, overlap.overlap_section)
        return [alarm for section in sections for alarm in section(evaluation).alarms]


def small_evaluation(folder: Path, seed: int) -> SmallEvaluation:
    """Makes an evaluation without any fault. Another seed gives other words, sentences and errors."""
    rng = random.Random(seed)
    words = {tag: _words(rng, *letters) for tag, letters in LETTERS.items()}
    train = {tag: [_sentence(rng, words, tag) for _ in range(80)] for tag in LANGUAGES}
    test = {tag: [_sentence(rng, words, tag) for _ in range(LINES)] for tag in LANGUAGES}
    outputs, baseline_outputs = (
        {tag: [_noisy(rng, row[1], words["en"], share) for row in test[tag]] for tag in LANGUAGES}
        for share in (0.2, 0.4)
    )
    return SmallEvaluation(
        folder,
        train,
        test,
        outputs,
        baseline_outputs,
        dict.fromkeys(LANGUAGES, 1000),
        dict.fromkeys(LANGUAGES, 900),
        dict.fromkeys(LANGUAGES, 4),
        [
            {f"effective_experts/{layer}": float(rng.uniform(6.5, 8)) for layer in ("encoder_1",)}
            for _ in range(5)
        ],
    )


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
