"""An example of a report, from invented scores: to look at the page, and to test it."""

import math
import random

from gshard_nmt.evaluation import report
from gshard_nmt.evaluation.report import LanguageResult, Sample, Section

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


def example_report(count: int, seed: int = 7) -> report.Report:
    """Returns a report of a number of languages. Languages with less text gain more, as in the paper."""
    rng = random.Random(seed)
    results = [_result(rng, place, count) for place in range(count)]
    facts = [
        ("run", "runs/example (invented scores)"),
        ("decoding", "beam 4, step 5000 of 5000"),
        ("multilingual model", "1,234,567 parameters, 5,000 steps, 67.8 s"),
        ("command", "gshard-eval --workdir=runs/example --corpus=corpus --report=build/look"),
    ]
    alarm = Section(
        "example", "An example of a study", "<p>Every part of the report may add a section.</p>", {},
        ("These scores are invented: this page is an example of a report.",),
    )  # fmt: skip
    signatures = {"bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"}
    return report.Report(results, signatures, facts, "example: test BLEU", [alarm])


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
