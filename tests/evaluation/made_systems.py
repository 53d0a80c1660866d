"""Systems with scores that a rule gives, for tests of reports that compare them."""

from pathlib import Path
from typing import Any

from gshard_nmt.evaluation import translations
from gshard_nmt.evaluation.significance import Comparison
from gshard_nmt.evaluation.systems import Budget, Result, System
from gshard_nmt.run.folder import RunFolder


def made_test(language: str, train_pairs: int = 9, lines: int = 0) -> translations.TestSet:
    """Returns a test set of sentences into English."""
    sources, references = ([f"{word} {n}" for n in range(lines)] for word in ("un", "one"))
    return translations.TestSet(language, language, "en", train_pairs, sources, references)


def result_of(number: int, bleu: float, baseline: float | None = 20.0, **changes: Any) -> Result:
    """Returns a score of language number `number`, which has the more training pairs the lower it is."""
    test = changes.pop("test", None) or made_test(f"l{number}", 10**6 // (number + 1))
    values: dict[str, Any] = {"chrf": bleu + 10, "lines": ["x"] * 50}
    if baseline is not None:
        gain = bleu - baseline
        values["baseline"] = Result(test, baseline)
        values["gain"] = Comparison(gain, (gain - 1, gain + 1), 0.01)
    return Result(test, bleu, **(values | changes))


def system_of(name: str, scores: dict[int, float], **changes: Any) -> System:
    """Returns a run with these scores of the languages by number."""
    results = [result_of(number, bleu) for number, bleu in scores.items()]
    budget = Budget(weights=10**6, experts=8, layers=4, device_years=0.5, days=3.0)
    values = {"run": RunFolder(Path("runs") / name), "budget": budget, "results": results}
    return System(name, **(values | changes))
