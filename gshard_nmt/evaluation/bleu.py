"""Computes BLEU and chrF of a test set. A score always comes with its signature."""

import dataclasses
from collections.abc import Sequence
from typing import cast

from gshard_nmt.evaluation import metrics, significance

References = Sequence[str] | Sequence[Sequence[str]]
"""One reference, or several complete references."""


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


def score(hypotheses: Sequence[str], references: References, target: str = "en") -> Score:
    """Computes corpus BLEU and chrF of a system.

    Args:
      hypotheses: the translation of each sentence.
      references: the reference of each sentence, or a list of several references.
      target: BCP 47 tag of the language, which chooses the tokenizer of BLEU.

    Raises:
      UserError: there is nothing to score, or the numbers of lines differ.
    """
    results = metrics.scores(hypotheses, _several(references), target)
    bleu, chrf = results["bleu"], results["chrf"]
    return Score(bleu.value, chrf.value, len(hypotheses), bleu.signature, chrf.signature)


def delta_interval(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: References,
    target: str = "en",
    resamples: int = 1000,
    seed: int = 12345,
) -> tuple[float, float]:
    """Returns the 95 % confidence interval of BLEU(hypotheses) - BLEU(baseline).

    It is computed by paired bootstrap resampling (Koehn 2004). Each resample draws sentences
    with replacement, the same for both systems.
    """
    comparison = significance.compare(
        hypotheses, baseline, _several(references), target, "bleu", resamples, seed
    )
    return comparison.interval


def _several(references: References) -> list[Sequence[str]]:
    """Returns a list of references."""
    if all(isinstance(line, str) for line in references):
        return [cast(Sequence[str], references)]
    return cast(list[Sequence[str]], list(references))
