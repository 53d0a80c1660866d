"""The bootstrap agrees with a plain implementation, and Benjamini-Hochberg with its paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF

from gshard_nmt.evaluation import significance
from gshard_nmt.evaluation.significance import adjusted_p_values, compare
from tests.evaluation.sentences import noisy, sentences

METRICS = {"bleu": BLEU, "chrf": CHRF}
SCORES = {"bleu": significance.bleu_of, "chrf": significance.chrf_of}


def plain_compare(hypotheses, baseline, references, key, resamples, seed):
    """Scores each draw with sacreBLEU, from its sentences."""
    rng = np.random.default_rng(seed)

    def score(lines, places):
        drawn = [[reference[i] for i in places] for reference in references]
        return METRICS[key]().corpus_score([lines[i] for i in places], drawn).score

    deltas = []
    for _ in range(resamples):
        places = rng.integers(0, len(hypotheses), len(hypotheses))
        deltas.append(score(hypotheses, places) - score(baseline, places))
    every = range(len(hypotheses))
    not_better = sum(delta <= 0 for delta in deltas) + 1
    not_worse = sum(delta >= 0 for delta in deltas) + 1
    return (
        score(hypotheses, every) - score(baseline, every),
        np.percentile(deltas, [2.5, 97.5]),
        min(1, 2 * min(not_better, not_worse) / (resamples + 1)),
    )


@pytest.mark.parametrize("key", ["bleu", "chrf"])
@pytest.mark.parametrize("rates", [(0.3, 0.35), (0.2, 0.7)])
def test_the_bootstrap_equals_a_plain_implementation(monkeypatch, key, rates):
    monkeypatch.setattr(significance, "_BLOCK", 13 * 20)  # several blocks, and a smaller last one
    references = [sentences(0, 20), noisy(sentences(0, 20), 1, 0.1)]
    system, baseline = (noisy(references[0], 2 + i, rate) for i, rate in enumerate(rates))
    result = compare(system, baseline, references, "en", key, 40, 7)
    delta, interval, p_value = plain_compare(system, baseline, references, key, 40, 7)
    assert result.delta == pytest.approx(delta)
    assert result.interval == pytest.approx(interval)
    assert result.p_value == pytest.approx(p_value)


@pytest.mark.parametrize("key", ["bleu", "chrf"])
@pytest.mark.parametrize("rate", [0.0, 0.2, 0.6, 1.0])
def test_scores_of_summed_statistics_equal_sacrebleus(key, rate):
    references = [sentences(3), noisy(sentences(3), 9, 0.2)]
    hypotheses = noisy(references[0], 4, rate)
    hypotheses[0] = ""
    rows = significance.statistics(hypotheses, references, "en", key)
    expected = METRICS[key]().corpus_score(hypotheses, references).score
    assert float(SCORES[key](rows.sum(0))) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("hypothesis", "reference"),
    [("one two three", "one two three"), ("", "one"), ("a", "b"), ("ab", "abc def")],
)
@pytest.mark.parametrize("key", ["bleu", "chrf"])
def test_scores_of_few_words_equal_sacrebleus(key, hypothesis, reference):
    rows = significance.statistics([hypothesis], [[reference]], "en", key)
    expected = METRICS[key]().corpus_score([hypothesis], [[reference]]).score
    assert float(SCORES[key](rows.sum(0))) == pytest.approx(expected)


def test_equal_systems_have_no_difference_and_a_p_value_of_1():
    references = [sentences(5)]
    system = noisy(references[0], 6, 0.3)
    for key in METRICS:
        result = compare(system, list(system), references, "en", key, 500)
        assert result == significance.Comparison(0.0, (0.0, 0.0), 1.0)
    assert adjusted_p_values([1.0] * 5) == [1.0] * 5


def test_a_much_better_system_is_significant_in_both_orders():
    references = [sentences(5)]
    good, bad = noisy(references[0], 6, 0.1), noisy(references[0], 7, 0.5)
    better, worse = (
        compare(first, second, references, "en") for first, second in ((good, bad), (bad, good))
    )
    assert better.p_value == worse.p_value == pytest.approx(2 / 10_001)
    assert 0 < better.interval[0] < better.delta < better.interval[1]
    assert worse.interval == pytest.approx((-better.interval[1], -better.interval[0]))


# Benjamini and Hochberg (1995), "Controlling the False Discovery Rate: A Practical and Powerful Approach
# to Multiple Testing", Journal of the Royal Statistical Society B 57(1), section 4.1: 15 hypotheses on
# the treatment of myocardial infarction. At a rate of 5 % the first four are significant, because
# p(4) = 0.0095 <= 4/15 x 0.05 = 0.013, and no later p-value is under its bound.
PAPER = [
    *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459),
    *(0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000),
]


def significant(p_values, rate):
    return [adjusted <= rate for adjusted in adjusted_p_values(p_values)]


def test_benjamini_hochberg_gives_the_result_of_its_paper():
    assert significant(PAPER, 0.05) == [True] * 4 + [False] * 11
    assert adjusted_p_values(PAPER)[3] == pytest.approx(0.0095 * 15 / 4)


def plain_benjamini_hochberg(p_values, rate):
    ordered = sorted(p_values)
    last = 0.0
    for rank, value in enumerate(ordered, 1):
        if value * len(ordered) / rank <= rate:
            last = value
    return [value <= last for value in p_values]


P_VALUES = st.lists(st.floats(1e-6, 1.0), min_size=0, max_size=30)


@settings(max_examples=60, deadline=None)
@given(P_VALUES, st.sampled_from([0.01, 0.05, 0.2]), st.randoms())
def test_benjamini_hochberg_equals_a_plain_implementation_in_any_order(p_values, rate, random):
    result = significant(p_values, rate)
    assert result == plain_benjamini_hochberg(p_values, rate)
    shuffled = list(range(len(p_values)))
    random.shuffle(shuffled)
    assert significant([p_values[i] for i in shuffled], rate) == [result[i] for i in shuffled]


def counts(lines, references):
    return significance.statistics(lines, [references], "en")


def test_the_error_of_a_mean_agrees_with_sacrebleu_on_drawn_references():
    rng = np.random.default_rng(7)
    references = [sentences(1, 30), sentences(2, 30)]
    references[1][:15] = references[0][15:]  # half of the sentences are in both test sets
    systems = [[noisy(lines, seed, 0.3) for seed in (3, 4)] for lines in references]
    pairs = [
        (counts(ours, lines), counts(theirs, lines))
        for (ours, theirs), lines in zip(systems, references, strict=True)
    ]
    found = significance.error_of_mean(pairs, references)
    texts = list(dict.fromkeys(references[0] + references[1]))
    means = []
    for _ in range(300):
        drawn = [texts[i] for i in rng.integers(0, len(texts), len(texts))]
        deltas = []
        for (ours, theirs), lines in zip(systems, references, strict=True):
            places = [lines.index(text) for text in drawn if text in lines]
            scores = [
                BLEU().corpus_score([side[i] for i in places], [[lines[i] for i in places]]).score
                for side in (ours, theirs)
            ]
            deltas.append(scores[0] - scores[1])
        means.append(np.mean(deltas))
    assert found == pytest.approx(np.std(means), rel=0.15)


def test_differences_on_the_same_references_go_up_and_down_together():
    references = sentences(1)
    pair = counts(noisy(references, 2, 0.3), references), counts(references, references)
    error = significance.error_of_mean([pair], [references])
    assert significance.error_of_mean([pair] * 4, [references] * 4) == pytest.approx(error)
    low, high = significance.compare_statistics(*pair).interval
    assert error == pytest.approx((high - low) / (2 * 1.96), rel=0.1)
    # With references of their own, the errors are independent.
    others = [[f"{text} {i}" for text in references] for i in range(4)]
    assert significance.error_of_mean([pair] * 4, others) == pytest.approx(error / 2, rel=0.1)
    assert significance.error_of_mean([(pair[0], pair[0])], [references]) == 0
