"""Early stopping."""

from gshard_nmt.run.checkpoint.retention import Scores
from gshard_nmt.run.patience import Patience


def counted(patience: Patience, *values: float, **settings: object) -> Patience:
    for value in values:
        patience.count(Scores({patience.metric: value}, settings))
    return patience


def test_a_run_ends_after_the_given_number_of_validations_without_a_better_score():
    patience = counted(Patience("dev_nll"), 3.0, 2.0, 2.0, 2.5)
    assert patience.best == 2.0
    assert patience.is_over(2)
    assert not patience.is_over(3)
    assert not patience.is_over(0)
    assert not counted(patience, 1.9).is_over(1)


def test_a_higher_bleu_is_better():
    assert counted(Patience("dev_bleu/fr"), 10.0, 12.0).validations == 0
    assert counted(Patience("dev_bleu/fr"), 12.0, 10.0, 11.0).validations == 2


def test_scores_with_other_settings_start_the_count_anew():
    patience = counted(Patience("dev_bleu"), 30.0, 20.0, bleu_sentences=10)
    assert patience.validations == 1
    counted(patience, 5.0, bleu_sentences=100)
    assert (patience.best, patience.validations) == (5.0, 0)


def test_a_validation_without_the_score_is_not_counted():
    patience = counted(Patience("dev_bleu"), 30.0)
    patience.count(Scores({"dev_nll": 3.0}))
    assert patience.validations == 0


def test_the_count_is_resumed_unless_another_metric_is_followed():
    patience = counted(Patience("dev_nll"), 2.0, 2.0, dev_batches=1)
    assert Patience.resumed("dev_nll", patience.facts()) == patience
    assert Patience.resumed("dev_bleu", patience.facts()) == Patience("dev_bleu")
    assert Patience.resumed("dev_nll", None) == Patience("dev_nll")


def test_the_count_begins_when_bleu_is_above_0():
    patience = Patience("dev_bleu")
    for score in (0.0, 0.0, 0.0, 0.0):
        patience.count(Scores({"dev_bleu": score}))
        assert patience.validations == 0
    for score, validations in ((3.0, 0), (0.0, 1), (3.0, 2), (3.1, 0)):
        patience.count(Scores({"dev_bleu": score}))
        assert patience.validations == validations
    nll = Patience("dev_nll")
    for validations in (0, 1, 2):
        nll.count(Scores({"dev_nll": 0.0}))
        assert nll.validations == validations
