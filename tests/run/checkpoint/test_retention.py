"""Which checkpoints are kept."""

import pytest

from gshard_nmt.run.checkpoint.checkpoint import Retention
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.settings.config import Train

NONE = Scores()


def nll(value: float, **settings) -> Scores:
    return Scores({"dev_nll": value, "dev_nll/fr": -value}, settings)


def test_the_last_ones_every_kth_and_the_best_are_kept():
    scores = {1: nll(3), 2: nll(1), 3: NONE, 4: nll(2), 5: NONE, 6: NONE}
    assert Retention(every=4).reasons(scores) == {
        1: [],
        2: ["best"],
        3: [],
        4: ["every"],
        5: ["last"],
        6: ["last"],
    }
    assert Retention(last=3, best=2).reasons(scores) == {
        1: [],
        2: ["best"],
        3: [],
        4: ["last", "best"],
        5: ["last"],
        6: ["last"],
    }


def test_an_average_takes_no_place_of_the_last_ones():
    average = nll(1, average_of=["a"])
    reasons = Retention(best=0).reasons({1: average, 2: NONE, 4: NONE, 5: average})
    assert reasons == {1: [], 2: ["last"], 4: ["last"], 5: ["last"]}


def test_without_scores_there_is_no_best():
    assert Retention().ranked({1: NONE, 2: NONE}) == []
    assert Retention().reasons({1: NONE, 2: NONE, 3: NONE}) == {1: [], 2: ["last"], 3: ["last"]}
    assert Retention().reasons({}) == {}


def test_nats_are_best_if_low_and_bleu_if_high():
    scores = {
        1: Scores({"dev_nll": 1.0, "dev_bleu": 5.0}),
        2: Scores({"dev_nll": 2.0, "dev_bleu": 9.0}),
    }
    assert Retention(metric="dev_nll").ranked(scores) == [1, 2]
    assert Retention(metric="dev_bleu").ranked(scores) == [2, 1]


def test_equal_bleu_is_decided_by_the_nats_then_by_the_earlier_step():
    """At the beginning BLEU is 0 for long; the first checkpoint must not stay the best."""
    scores = {
        step: Scores({"dev_bleu": 0.0, "dev_nll": n}) for step, n in [(1, 9.0), (2, 7.0), (3, 7.0)]
    }
    assert Retention(metric="dev_bleu").ranked(scores) == [2, 3, 1]


def test_scores_with_other_settings_than_the_newest_are_not_compared():
    scores = {1: nll(1, beam=1), 2: nll(5, beam=4), 3: nll(4, beam=4), 4: NONE}
    assert Retention().ranked(scores) == [3, 2]


@pytest.mark.parametrize(
    ("settings", "metric"),
    [
        ({}, "dev_nll"),
        ({"bleu_sentences": 5}, "dev_bleu"),
        ({"bleu_sentences": 5, "best_metric": "dev_nll/fr"}, "dev_nll/fr"),
    ],
)
def test_the_rules_of_a_run_are_its_settings(settings, metric):
    train = Train(keep_last=3, keep_every=7, keep_best=2, **settings)
    assert Retention.of(train) == Retention(3, 7, 2, metric)
