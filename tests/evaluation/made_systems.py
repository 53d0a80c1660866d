"""Systems with scores that a rule gives, for tests of reports that compare them."""

from gshard_nmt.evaluation.systems.systems import Budget, DirectionResult, System


def result_of(
    number: int, bleu: float, baseline: float | None = 20.0, **changes
) -> DirectionResult:
    """Returns a score of language number `number`, which has the more training pairs the lower it is."""
    language = f"l{number}"
    interval = None if baseline is None else (bleu - baseline - 1, bleu - baseline + 1)
    values = {
        "language": language,
        "direction": (language, "en"),
        "train_pairs": 10**6 // (number + 1),
        "sentences": 50,
        "bleu": bleu,
        "chrf": bleu + 10,
        "baseline_bleu": baseline,
        "delta_ci95": interval,
    }
    return DirectionResult(**(values | changes))


def system_of(name: str, scores: dict[int, float], **changes) -> System:
    """Returns a run with these scores of the languages by number."""
    results = [result_of(number, bleu) for number, bleu in scores.items()]
    budget = Budget(weights=10**6, experts=8, layers=4, device_years=0.5, days=3.0)
    return System(name, results, **({"run": f"runs/{name}", "budget": budget} | changes))
