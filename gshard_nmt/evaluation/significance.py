"""Whether one system is better than another: p-values, intervals, and the false discovery rate.

A p-value comes from approximate randomization: Riezler and Maxwell (2005), "On Some Pitfalls in Automatic
Evaluation and Significance Testing for MT". An interval comes from the bootstrap: Koehn (2004),
"Statistical Significance Tests for Machine Translation Evaluation", section 3. With few sentences, its
percentiles reject far too many true null hypotheses, so it has no p-value here. We compute all draws from
the statistics of each sentence, with a product of matrices.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from sacrebleu.metrics import BLEU
from scipy import stats

from gshard_nmt.evaluation.metrics import tokenizer

RESAMPLES = 10_000
"""Number of draws of a test.

The smallest p-value is 1 / 10,001. With it, Benjamini-Hochberg at 5 % can still find one difference
among 500 directions.
"""

METHOD = "approximate randomization"

DRAWS_OF_MEAN = 2_000
"""Number of draws of the bootstrap over several test sets."""

_SEED = 12345
_BLOCK = 1 << 22
"""Number of draws of a sentence that are in memory at once; 32 MiB."""

RATE = 0.05
"""The false discovery rate at which a difference is called significant."""
NORMAL = 1.96
"""Standard errors on each side of a 95 % interval."""
_TIE = 1e-9
"""Differences that are closer than this are equal."""

Interval = tuple[float, float]


class Comparison(NamedTuple):
    """The difference of a system from a baseline on one test set, its 95 % interval, and its p-value.

    The p-value is the probability of a difference like this if both were equally good; two-sided.
    """

    delta: float
    interval: Interval
    p_value: float


def compare_statistics(system: np.ndarray, baseline: np.ndarray) -> Comparison:
    """Compares two systems by the statistics of their sentences.

    The same number of sentences gives the same draws.
    """
    rng, deltas = np.random.default_rng(_SEED), []
    for count in _blocks(RESAMPLES, len(system)):
        counts = _counts(rng, count, len(system))
        deltas.append(bleu_of(counts @ system) - bleu_of(counts @ baseline))
    low, high = np.percentile(np.concatenate(deltas), [2.5, 97.5])
    delta = float(bleu_of(system.sum(0)) - bleu_of(baseline.sum(0)))
    interval = float(low), float(high)
    return Comparison(delta, interval, _p_value(system, baseline))


def _p_value(system: np.ndarray, baseline: np.ndarray) -> float:
    """Returns the share of draws with a difference as large, if it were chance who wrote which output.

    Each draw swaps the outputs of the two systems for half of the sentences, chosen at random. The test
    set itself counts as one more draw, so no p-value is 0.
    """
    rng = np.random.default_rng(_SEED)
    total = system.sum(0) + baseline.sum(0)
    least = abs(float(bleu_of(system.sum(0)) - bleu_of(baseline.sum(0)))) - _TIE
    extreme = 1
    for count in _blocks(RESAMPLES, len(system)):
        is_swapped = rng.integers(0, 2, (count, len(system)), np.uint8)
        ours = system.sum(0) + is_swapped.astype(np.float64) @ (baseline - system)
        extreme += int((np.abs(bleu_of(ours) - bleu_of(total - ours)) >= least).sum())
    return extreme / (RESAMPLES + 1)


def _counts(rng: np.random.Generator, draws: int, number: int) -> np.ndarray:
    """Returns float64[draw, place]: how often each of some places is drawn, with replacement."""
    places = rng.integers(0, number, (draws, number)) + number * np.arange(draws)[:, None]
    counts = np.bincount(places.ravel(), minlength=draws * number)
    return counts.reshape(draws, number).astype(np.float64)


def _blocks(draws: int, sentences: int) -> Iterator[int]:
    """Yields numbers of draws that fit into memory, until there are `draws`."""
    block = max(1, _BLOCK // sentences)
    for start in range(0, draws, block):
        yield min(block, draws - start)


def drawn_scores(
    systems: Sequence[Sequence[np.ndarray]], groups: Sequence[Sequence[str]]
) -> list[np.ndarray]:
    """Returns for each test set float64[system, draw], BLEU on sentences drawn with replacement.

    Sentences of one group, such as those with one English text, are drawn together. Test sets of several
    languages often have the same English sentences, and then the scores go up and down together. For each
    test set, `systems` has the statistics of each system, and `groups` the group of each sentence.
    """
    texts = dict.fromkeys(text for lines in groups for text in lines)
    numbers = {text: number for number, text in enumerate(texts)}
    places = [[numbers[text] for text in lines] for lines in groups]
    scores = [np.zeros((len(sides), DRAWS_OF_MEAN)) for sides in systems]
    rng, end = np.random.default_rng(_SEED), 0
    for count in _blocks(DRAWS_OF_MEAN, max(len(numbers), 1)):
        start, end = end, end + count
        # float64[draw, group]: how often a draw has the sentences of a group.
        drawn = _counts(rng, count, len(numbers))
        for sides, own, rows in zip(systems, places, scores, strict=True):
            rows[:, start:end] = [bleu_of(drawn[:, own] @ side) for side in sides]
    return scores


def interval_of_mean(values: Sequence[float], drawn: np.ndarray | None = None) -> Interval | None:
    """Returns the 95 % interval of a mean over languages; None if nothing can be said.

    The spread of the values covers which languages were taken, and the sentences of each language as if
    no other had them. `drawn`, float64[language, draw], adds what shared sentences do to all languages at
    once. The spread of fewer than three languages says too little, so the interval then covers the
    sentences alone.
    """
    number = len(values)
    if number < 3:
        if drawn is None:
            return None
        low, high = np.percentile(drawn.mean(0), [2.5, 97.5])
        return float(low), float(high)
    half = float(stats.t.ppf(0.975, number - 1)) * float(np.std(values, ddof=1)) / math.sqrt(number)
    if drawn is not None:
        together = float(drawn.mean(0).std())
        shared = together**2 - float(drawn.var(1).sum()) / number**2
        half = max(math.hypot(half, NORMAL * math.sqrt(max(shared, 0.0))), NORMAL * together)
    mean = float(np.mean(values))
    return mean - half, mean + half


def adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """Returns the smallest false discovery rate at which each p-value is significant, in the given order.

    Benjamini and Hochberg (1995), "Controlling the False Discovery Rate", section 3: with the p-values in
    ascending order, find the last p(i) that is at most rate x i / number. It and all smaller ones are
    significant. Of the differences that are called significant, a share of `rate` is expected to be
    chance.
    """
    return stats.false_discovery_control(p_values).tolist()


def statistics(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], target: str
) -> np.ndarray:
    """Returns the statistics of each sentence, float64[sentence, 10]; see `bleu_of`."""
    metric = BLEU(tokenize=tokenizer(target))
    return np.array(metric._extract_corpus_statistics(hypotheses, references), np.float64)


def bleu_of(sums: np.ndarray) -> np.ndarray:
    """Computes BLEU, float64[...] from 0 to 100, as sacreBLEU does with exponential smoothing.

    `sums` is float64[..., 10], summed over sentences: the words of the translations and of the
    references; the n-grams that match a reference, for n = 1 to 4; all n-grams of the translations.
    """
    hypothesis_words, reference_words = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2:6], sums[..., 6:]
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
