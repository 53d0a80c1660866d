"""Whether one system is better than another: paired bootstrap, and the false discovery rate.

Koehn (2004), "Statistical Significance Tests for Machine Translation Evaluation", section 3.3, draws
test sets with replacement from the sentences of one test set, the same for both systems. We compute all
of them from the statistics of each sentence, with a product of matrices.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from gshard_nmt.evaluation import metrics

RESAMPLES = 10_000
"""Number of draws.

The smallest p-value is 2 / 10,001. With it, Benjamini-Hochberg at 5 % can still find one difference
among 250 directions.
"""

_SEED = 12345
_BLOCK = 1 << 22
"""Number of draws of a sentence that are in memory at once; 32 MiB."""

_ORDER = 4
"""BLEU counts n-grams of 1 to 4 words."""

_BETA = 2
"""In chrF, recall counts twice as much as precision."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The difference of two systems on one test set.

    Attributes:
      delta: score of the system - score of the baseline.
      interval: the 95 % interval of the difference.
      p_value: probability of a difference like this if the systems were equally good; two-sided.
    """

    delta: float
    interval: tuple[float, float]
    p_value: float


def compare(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[Sequence[str]],
    target: str,
    key: str = "bleu",
    resamples: int = RESAMPLES,
    seed: int = _SEED,
) -> Comparison:
    """Compares two systems by paired bootstrap.

    The p-value is twice the share of draws in which the worse system is at least as good, or 1 if that is
    smaller. As usual the test set itself counts as one more draw, so no p-value is 0.

    Args:
      hypotheses, baseline: the translations of the two systems.
      references: one or several complete references.
      target: BCP 47 tag of the target language.
      key: "bleu" or "chrf".
      resamples: number of draws.
      seed: starts the random numbers. The same seed and number of sentences give the same draws.

    Raises:
      UserError: there is nothing to score, or the numbers of lines differ.
    """
    pair = [statistics(lines, references, target, key) for lines in (hypotheses, baseline)]
    return compare_statistics(pair[0], pair[1], key, resamples, seed)


def compare_statistics(
    system: np.ndarray,
    baseline: np.ndarray,
    key: str = "bleu",
    resamples: int = RESAMPLES,
    seed: int = _SEED,
) -> Comparison:
    """Compares two systems as `compare` does, from the statistics of their sentences."""
    score, pair = SCORES[key], (system, baseline)
    ours, theirs = (score(rows.sum(0)) for rows in pair)
    deltas = _deltas(pair, score, resamples, seed)
    low, high = np.percentile(deltas, [2.5, 97.5])
    tail = min((deltas <= 0).sum(), (deltas >= 0).sum())
    p_value = min(1.0, 2 * (float(tail) + 1) / (resamples + 1))
    return Comparison(float(ours - theirs), (float(low), float(high)), p_value)


def error_of_mean(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    references: Sequence[Sequence[str]],
    draws: int = 2_000,
    seed: int = _SEED,
) -> float:
    """Returns the standard error of the mean difference of BLEU over several test sets.

    Sentences with the same reference are drawn together. Test sets of several languages often have the
    same English sentences, and then the differences of the languages go up and down together.

    Args:
      pairs: for each test set, the statistics of the sentences of two systems.
      references: for each test set, the reference of each sentence.
      draws: number of draws.
      seed: starts the random numbers.
    """
    texts = dict.fromkeys(text for lines in references for text in lines)
    numbers = {text: number for number, text in enumerate(texts)}
    rng = np.random.default_rng(seed)
    # int[draw, reference]: how often a draw has the sentences of a reference.
    drawn = rng.multinomial(len(numbers), np.full(len(numbers), 1 / len(numbers)), draws)
    total = np.zeros(draws)
    for (ours, theirs), lines in zip(pairs, references, strict=True):
        counts = drawn[:, [numbers[text] for text in lines]].astype(np.float64)
        total += bleu_of(counts @ ours) - bleu_of(counts @ theirs)
    return float((total / len(pairs)).std())


def _deltas(
    pair: Sequence[np.ndarray],
    score: Callable[[np.ndarray], np.ndarray],
    resamples: int,
    seed: int,
) -> np.ndarray:
    """Returns float64[draw], the difference of the two systems in each draw."""
    sentences = len(pair[0])
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // sentences)
    deltas = []
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        places = rng.integers(0, sentences, (count, sentences))
        places += sentences * np.arange(count)[:, None]
        # float64[draw, sentence]: how often a draw has the sentence.
        counts = np.bincount(places.ravel(), minlength=count * sentences).astype(np.float64)
        counts = counts.reshape(count, sentences)
        ours, theirs = (score(counts @ rows) for rows in pair)
        deltas.append(ours - theirs)
    return np.concatenate(deltas)


def adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """Returns for each p-value the smallest false discovery rate at which it is significant.

    Benjamini and Hochberg (1995), "Controlling the False Discovery Rate", section 3: with the p-values in
    ascending order, find the last p(i) that is at most rate x i / number. It and all smaller ones are
    significant. Of the differences that are called significant, a share of `rate` is expected to be
    chance.

    Args:
      p_values: one for each test, in any order.
    """
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values, kind="stable")
    ranked = values[order] * len(values) / np.arange(1, len(values) + 1)
    # Each is the minimum of itself and all that come after it.
    smallest = np.minimum.accumulate(ranked[::-1])[::-1]
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(smallest, 1.0)
    return adjusted.tolist()


def statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], target: str, key: str = "bleu"
) -> np.ndarray:
    """Returns the statistics of each sentence: float64[sentence, 10] of BLEU, [sentence, 18] of chrF.

    `bleu_of` and `chrf_of` compute the score from their sums.

    Raises:
      UserError: there is nothing to score, or the numbers of lines differ.
    """
    metrics.check_lengths(hypotheses, references)
    metric = metrics.metric_of(key, target)
    rows = metric._extract_corpus_statistics(list(hypotheses), [list(r) for r in references])
    return np.array(rows, np.float64)


def bleu_of(sums: np.ndarray) -> np.ndarray:
    """Computes BLEU from statistics, as sacreBLEU does with its default, exponential smoothing.

    Args:
      sums: float64[..., 10], summed over sentences. The first 2 numbers count the words of the
        translations and of the references. The next 4 count the n-grams that match a reference, for
        n = 1 to 4. The last 4 count all n-grams of the translations.

    Returns:
      float64[...], from 0 to 100.
    """
    hypothesis_words, reference_words = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2 : 2 + _ORDER], sums[..., 2 + _ORDER :]
    # The first order without a match counts as half a match, the next as a quarter, and so on.
    zeros = np.cumsum(matches == 0, axis=-1)
    smoothed = np.where(matches == 0, 0.5**zeros, matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        # The logarithms of the precisions and of the brevity penalty.
        log_precisions = np.log(smoothed / totals)
        log_brevity = np.minimum(0.0, 1.0 - reference_words / hypothesis_words)
        values = 100.0 * np.exp(log_precisions.mean(-1) + log_brevity)
    # BLEU is 0 if nothing matches, and also if it is undefined: no n-gram of some order, or no words.
    is_zero = (totals == 0).any(-1) | (matches == 0).all(-1) | (hypothesis_words == 0)
    return np.where(is_zero, 0.0, values)


def chrf_of(sums: np.ndarray) -> np.ndarray:
    """Computes chrF from statistics, as sacreBLEU does: precision and recall are means over orders.

    Args:
      sums: float64[..., 18], summed over sentences. It has three numbers for each order of n-grams: those
        of the translations, those of the references, and those that match.

    Returns:
      float64[...], from 0 to 100.
    """
    translated, expected, matches = (sums[..., i::3] for i in range(3))
    # An order without n-grams on one side does not count.
    counts = (translated > 0) & (expected > 0)
    orders = np.maximum(counts.sum(-1), 1)
    precision = np.where(counts, matches / np.maximum(translated, 1), 0.0).sum(-1) / orders
    recall = np.where(counts, matches / np.maximum(expected, 1), 0.0).sum(-1) / orders
    divisor = _BETA**2 * precision + recall
    score = (1 + _BETA**2) * precision * recall / np.where(divisor > 0, divisor, 1.0)
    return 100.0 * score


SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"bleu": bleu_of, "chrf": chrf_of}
"""What computes a score from the sum of the statistics."""
