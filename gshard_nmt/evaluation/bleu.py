"""BLEU and chrF with sacreBLEU: statistics, then score, then signature; no score without one."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from gshard_nmt.errors import UserError

_ORDER = 4
_TOKENIZERS = {"zh": "zh", "ja": "char", "ko": "char", "th": "char", "km": "char", "lo": "char"}


@dataclasses.dataclass(frozen=True)
class Score:
    """The scores of one system on one test set.

    Attributes:
      bleu, chrf: 0 to 100.
      sentences: how many.
      bleu_signature, chrf_signature: how they were computed.
    """

    bleu: float
    chrf: float
    sentences: int
    bleu_signature: str
    chrf_signature: str


def score(hypotheses: Sequence[str], references: Sequence[str], target: str = "en") -> Score:
    """Corpus BLEU and chrF of a system.

    Args:
      hypotheses: one a sentence.
      references: one a sentence.
      target: the language, which decides BLEU's tokeniser: 13a, or characters for unspaced scripts.

    Raises:
      UserError: nothing to score, or different numbers of lines.
    """
    _check(hypotheses, references)
    bleu, chrf = _bleu(target), CHRF()
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
    """The 95 % interval of BLEU(hypotheses) - BLEU(baseline) by paired bootstrap (Koehn 2004)."""
    _check(hypotheses, references)
    _check(baseline, references)
    systems = [_statistics(lines, references, target) for lines in (hypotheses, baseline)]
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(references), (resamples, len(references)))
    counts = np.stack([np.bincount(draw, minlength=len(references)) for draw in draws])
    ours, theirs = (bleu_of(counts @ statistics) for statistics in systems)
    low, high = np.percentile(ours - theirs, [2.5, 97.5])
    return float(low), float(high)


def bleu_of(statistics: np.ndarray) -> np.ndarray:
    """BLEU of summed statistics float64[..., 10]: matches and totals of each order, two lengths.

    As sacreBLEU computes it, with its exponential smoothing of zero matches.
    """
    matches, totals = statistics[..., :_ORDER], statistics[..., _ORDER : 2 * _ORDER]
    lengths, reference = statistics[..., -2], statistics[..., -1]
    zeros = np.cumsum(matches == 0, axis=-1)
    smoothed = np.where(matches == 0, 0.5**zeros, matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.log(smoothed / totals)
        brevity = np.minimum(0.0, 1.0 - reference / lengths)
        values = 100.0 * np.exp(precisions.mean(-1) + brevity)
    nothing = (totals == 0).any(-1) | (matches == 0).all(-1) | (lengths == 0)
    return np.where(nothing, 0.0, values)


def _statistics(hypotheses: Sequence[str], references: Sequence[str], target: str) -> np.ndarray:
    """float64[sentences, 10]."""
    bleu = _bleu(target)
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        one = bleu.corpus_score([hypothesis], [[reference]])
        rows.append([*one.counts, *one.totals, one.sys_len, one.ref_len])
    return np.array(rows, np.float64)


def _bleu(target: str) -> BLEU:
    return BLEU(tokenize=_TOKENIZERS.get(target.split("-")[0], "13a"))


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} translations for {len(references)} references; "
            "give one translation a reference."
        )
    if not references:
        raise UserError("there is nothing to score: the test set is empty.")
