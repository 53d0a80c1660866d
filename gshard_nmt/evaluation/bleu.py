"""Computes BLEU and chrF with sacreBLEU. A score always comes with its signature."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from gshard_nmt.errors import UserError

_ORDER = 4
"""BLEU counts n-grams of 1 to 4 words."""

_TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char", "th": "char", "km": "char", "lo": "char"}
"""sacreBLEU's tokenizer for languages that put no spaces between words; all others have "13a"."""


@dataclasses.dataclass(frozen=True)
class Score:
    """The scores of one system on one test set.

    Attributes:
      bleu, chrf: the scores, from 0 to 100.
      sentences: number of sentences.
      bleu_signature, chrf_signature: sacreBLEU's description of how each score was computed.
    """

    bleu: float
    chrf: float
    sentences: int
    bleu_signature: str
    chrf_signature: str


def score(hypotheses: Sequence[str], references: Sequence[str], target: str = "en") -> Score:
    """Computes corpus BLEU and chrF of a system.

    Args:
      hypotheses: the translation of each sentence.
      references: the reference of each sentence.
      target: BCP 47 tag of the language, which chooses the tokenizer of BLEU.

    Raises:
      UserError: there is nothing to score, or the numbers of lines differ.
    """
    _check_lengths(hypotheses, references)
    bleu, chrf = _bleu_metric(target), CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)])
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)])
    return Score(
        bleu_score.score,
        chrf_score.score,
        len(hypotheses),
        str(bleu.get_signature()),
        str(chrf.get_signature()),
    )


def delta_interval(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    target: str = "en",
    resamples: int = 1000,
    seed: int = 12345,
) -> tuple[float, float]:
    """Returns the 95 % confidence interval of BLEU(hypotheses) - BLEU(baseline).

    It is computed by paired bootstrap resampling (Koehn 2004). Each resample draws sentences
    with replacement, the same for both systems.
    """
    _check_lengths(hypotheses, references)
    _check_lengths(baseline, references)
    systems = [_sentence_statistics(lines, references, target) for lines in (hypotheses, baseline)]
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(references), (resamples, len(references)))
    # int64[resample, sentence]: how often a resample has the sentence.
    counts = np.stack([np.bincount(draw, minlength=len(references)) for draw in draws])
    system_bleu, baseline_bleu = (bleu_of(counts @ statistics) for statistics in systems)
    low, high = np.percentile(system_bleu - baseline_bleu, [2.5, 97.5])
    return float(low), float(high)


def bleu_of(statistics: np.ndarray) -> np.ndarray:
    """Computes BLEU from statistics, as sacreBLEU does with its default, exponential smoothing.

    Args:
      statistics: float64[..., 10], summed over sentences. The first 4 numbers count the n-grams that
        match the reference, for n = 1 to 4. The next 4 count all n-grams of the hypotheses, for
        n = 1 to 4. The last 2 count the words of the hypotheses and of the references.

    Returns:
      float64[...], from 0 to 100.
    """
    matches, totals = statistics[..., :_ORDER], statistics[..., _ORDER : 2 * _ORDER]
    hypothesis_words, reference_words = statistics[..., -2], statistics[..., -1]
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


def _sentence_statistics(
    hypotheses: Sequence[str], references: Sequence[str], target: str
) -> np.ndarray:
    """Returns float64[sentence, 10], the statistics of each sentence in the order of `bleu_of`."""
    metric = _bleu_metric(target)
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        sentence = metric.corpus_score([hypothesis], [[reference]])
        rows.append([*sentence.counts, *sentence.totals, sentence.sys_len, sentence.ref_len])
    return np.array(rows, np.float64)


def _bleu_metric(target: str) -> BLEU:
    return BLEU(tokenize=_TOKENIZERS.get(target.split("-")[0], "13a"))


def _check_lengths(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            f"the numbers of translations and references are {len(hypotheses)} and {len(references)}; "
            "give one translation for each reference."
        )
    if not references:
        raise UserError("the test set is empty; give at least one sentence.")
