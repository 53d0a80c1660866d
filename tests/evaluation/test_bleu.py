"""Scores equal sacreBLEU's, and intervals behave."""

import numpy as np
import pytest
import sacrebleu

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import bleu

WORDS = ["the", "file", "was", "not", "found", "in", "this", "folder", "again", "today"]


def sentences(seed: int, number: int = 40) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(3, 12))) for _ in range(number)]


def noisy(lines: list[str], seed: int, rate: float) -> list[str]:
    rng = np.random.default_rng(seed)
    return [
        " ".join(w if rng.random() > rate else rng.choice(WORDS) for w in line.split())
        for line in lines
    ]


def test_scores_are_sacrebleus_with_their_signatures():
    references = sentences(0)
    hypotheses = noisy(references, 1, 0.3)
    found = bleu.score(hypotheses, references)
    assert found.bleu == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert found.chrf == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score)
    assert "tok:13a" in found.bleu_signature
    assert "version:" in found.chrf_signature


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.6, 0.95])
def test_bleu_of_summed_statistics_is_sacrebleus(rate):
    references = sentences(3)
    hypotheses = noisy(references, 4, rate)
    statistics = bleu._statistics(hypotheses, references, "en").sum(0)
    expected = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert float(bleu.bleu_of(statistics)) == pytest.approx(expected, abs=1e-6)


def test_a_system_against_itself_differs_by_nothing_and_a_better_one_by_more():
    references = sentences(5)
    good, bad = noisy(references, 6, 0.1), noisy(references, 7, 0.5)
    assert bleu.delta_interval(good, good, references) == (0.0, 0.0)
    low, high = bleu.delta_interval(good, bad, references)
    delta = bleu.score(good, references).bleu - bleu.score(bad, references).bleu
    assert 0 < low < delta < high


@pytest.mark.parametrize(("hypotheses", "references"), [([], []), (["a"], ["a", "b"])])
def test_nothing_to_score_and_uneven_lines_are_errors(hypotheses, references):
    with pytest.raises(UserError):
        bleu.score(hypotheses, references)
