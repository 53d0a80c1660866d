"""Scores equal those of sacreBLEU, and confidence intervals are plausible."""

import pytest
import sacrebleu

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.metrics import bleu
from tests.evaluation.sentences import noisy, sentences


def test_scores_equal_sacrebleus_and_have_signatures():
    references = sentences(0)
    hypotheses = noisy(references, 1, 0.3)
    score = bleu.score(hypotheses, references)
    assert score.bleu == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert score.chrf == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score)
    assert "tok:13a" in score.bleu_signature
    assert "version:" in score.chrf_signature


def test_a_language_without_spaces_is_scored_by_characters():
    score = bleu.score(["ファイルが見つかりません"], ["ファイルが見つからない"], "ja")
    assert "tok:char" in score.bleu_signature
    assert 0 < score.bleu < 100


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        ([], [], "the test set is empty; give at least one sentence."),
        (
            ["a"],
            ["a", "b"],
            "the numbers of translations and references are 1 and 2; give one translation for each "
            "reference.",
        ),
    ],
)
def test_an_empty_test_set_and_different_numbers_of_lines_are_errors(
    hypotheses, references, message
):
    with pytest.raises(UserError) as raised:
        bleu.score(hypotheses, references)
    assert str(raised.value) == message
