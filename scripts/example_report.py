"""An example of a report, from invented scores: to look at the page, and to test it."""

import dataclasses
import math
import random

from gshard_nmt.evaluation.report import report
from gshard_nmt.evaluation.report.report import LanguageResult, Sample, Section
from gshard_nmt.evaluation.systems.systems import Budget, System

_LANGUAGES = (
    *("fr", "zh-CN", "ar", "de", "hi", "sr-Latn", "he", "th", "ja", "fa", "ru", "ko", "am", "my"),
    *("ka", "ur", "ta", "el", "vi", "yo"),
)
_TEXTS = {
    "fr": "Le fichier <b>n'existe pas</b> & ne peut être lu.",
    "zh-CN": "文件 <b>不存在</b> & 无法读取。",
    "ar": "الملف <b>غير موجود</b> ولا يمكن قراءته (1.0).",
    "he": "הקובץ <b>אינו קיים</b> ולא ניתן לקריאה.",
}
_REFERENCE = "The file <b>does not exist</b> & cannot be read."


def example_report(count: int, systems: int = 1, seed: int = 7) -> report.Report:
    """Returns a report of a number of languages and of systems.

    Languages with less text gain more, as in the paper.
    """
    rng = random.Random(seed)
    results = [_result(rng, place, count) for place in range(count)]
    facts = [
        ("run", "runs/example (invented scores)"),
        ("decoding", "beam 4, step 5000 of 5000"),
        ("multilingual model", "1,234,567 parameters, 5,000 steps, 67.8 s"),
        ("command", "gshard-eval --workdir=runs/example --corpus=corpus --report=build/look"),
    ]
    words = "These scores are invented: this page is an example of a report."
    text = "<p>Every part of the report may add a section.</p>"
    study = Section("example", "An example of a study", text, {}, (words,))
    signatures = {"bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"}
    title = "example: test BLEU"
    compared = _systems(rng, results, systems) if systems > 1 else ()
    return report.Report(results, signatures, facts, title, [study], compared)


def _systems(rng: random.Random, results: list[LanguageResult], number: int) -> list[System]:
    """Returns the main system and weaker ones. The second is dense, and lacks a language."""
    own = [result.direction_result() for result in results]
    systems = [System("64 experts", own, "runs/example", Budget(experts=64))]
    for place in range(1, number):
        weaker = [
            dataclasses.replace(result, bleu=result.bleu - place - rng.random(), delta_ci95=None)
            for result in own[place % 2 :]
        ]
        budget = Budget(experts=0 if place == 1 else 64 >> place)
        systems.append(System(f"system {place + 1}", weaker, f"runs/{place}", budget))
    return systems


def _result(rng: random.Random, place: int, count: int) -> LanguageResult:
    share = place / max(count - 1, 1)
    language = _LANGUAGES[place] if place < len(_LANGUAGES) else f"x{place:02d}"
    baseline = 34 - 24 * share + rng.gauss(0, 3)
    gain = 14 * share - 1 + rng.gauss(0, 2.5)
    half = 0.8 + rng.random()
    source = _TEXTS.get(language, f"A sentence in {language}.")
    sample = Sample(source, _REFERENCE, _REFERENCE.lower(), "the file")
    return LanguageResult(
        language,
        int(10 ** (7.5 - 3.5 * share)),
        500,
        baseline + gain,
        baseline + gain + 20 + rng.gauss(0, 2),
        baseline,
        (gain - half, gain + half),
        int(10 ** (8 - 2 * math.sqrt(share))),
        int(10 ** (8 - 2 * math.sqrt(share))),
        (sample,) * (1 if count > 50 else 3),
        language,
        "en",
    )
