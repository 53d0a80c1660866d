"""Computes BLEU and chrF of a test set. A score always comes with its signature."""

import dataclasses
from collections.abc import Sequence
from typing import cast

from gshard_nmt.evaluation.metrics import metrics

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


def _several(references: References) -> list[Sequence[str]]:
    """Returns a list of references."""
    if all(isinstance(line, str) for line in references):
        return [cast(Sequence[str], references)]
    return cast(list[Sequence[str]], list(references))
