"""The bootstrap agrees with a plain implementation, and Benjamini-Hochberg with its paper."""

import itertools

import numpy as np
import pytest
from sacrebleu.metrics import BLEU

from gshard_nmt.evaluation import significance
from gshard_nmt.evaluation.significance import adjusted_p_values
from tests.evaluation.sentences import noisy, sentences


@pytest.mark.parametrize("rates", [(0.3, 0.35), (0.2, 0.7)])
def test_interval_and_p_value_equal_those_of_plain_implementations(monkeypatch, rates):
    monkeypatch.setattr(significance, "_BLOCK", 13 * 20)  # several blocks, and a smaller last one
    monkeypatch.setattr(significance, "RESAMPLES", 40)
    references = [sentences(0, 20), noisy(sentences(0, 20), 1, 0.1)]
    systems = [noisy(references[0], 2 + i, rate) for i, rate in enumerate(rates)]
    rows = [significance.statistics(lines, references, "en") for lines in systems]
    result = significance.compare_statistics(*rows)

    def delta(first, second, places):
        drawn = [[reference[i] for i in places] for reference in references]
        scores = [
            BLEU().corpus_score([side[i] for i in places], drawn).score for side in (first, second)
        ]
        return scores[0] - scores[1]

    assert result.delta == pytest.approx(delta(*systems, range(20)))
    rng = np.random.default_rng(significance._SEED)
    deltas = [delta(*systems, rng.integers(0, 20, 20)) for _ in range(40)]
    assert result.interval == pytest.approx(np.percentile(deltas, [2.5, 97.5]))
    rng, extreme = np.random.default_rng(significance._SEED), 1
    # Random bytes are taken from words of four, so the blocks must be those of the program.
    for block in (13, 13, 13, 1):
        for swapped in rng.integers(0, 2, (block, 20), np.uint8):
            sides = [[systems[place ^ s][i] for i, s in enumerate(swapped)] for place in (0, 1)]
            extreme += abs(delta(*sides, range(20))) >= abs(result.delta) - 1e-9
    assert result.p_value == pytest.approx(extreme / 41)


def random_counts(rng, words, right, word):
    """Returns statistics: a share of the sentences is right, or else each word with a chance."""
    quality = np.where(rng.random(len(words)) < right, 1.0, word)
    totals = np.maximum(words[:, None] - np.arange(4), 0)
    matches = [rng.binomial(words, quality)]
    for order in range(1, 4):
        most = np.minimum(np.maximum(matches[-1] - 1, 0), totals[:, order])
        matches.append(rng.binomial(most, np.sqrt(quality)))
    return np.stack([words, words, *matches, *totals.T], axis=1).astype(float)


def random_systems(rng, number):
    """Returns the statistics of a system, and of a baseline with a score near 0."""
    words = np.minimum(1 + rng.geometric(0.15, number), 40)
    return random_counts(rng, words, 0.25, 0.5), random_counts(rng, words, 0.03, 0.2)


@pytest.mark.parametrize("number", [28, 100])
def test_5_percent_of_true_null_hypotheses_are_rejected(monkeypatch, number):
    monkeypatch.setattr(significance, "RESAMPLES", 400)
    rng, p_values = np.random.default_rng(number), []
    for seed in range(400):
        system, baseline = random_systems(rng, number)
        swapped = rng.random((number, 1)) < 0.5
        sides = np.where(swapped, baseline, system), np.where(swapped, system, baseline)
        monkeypatch.setattr(significance, "_SEED", seed)
        p_values.append(significance._p_value(*sides))
    assert 0.03 <= np.mean(np.array(p_values) <= 0.05) <= 0.07
    assert np.mean(np.array(p_values) <= 0.01) <= 0.02


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.6, 1.0])
def test_scores_of_summed_statistics_equal_sacrebleus(rate):
    references = [sentences(3), noisy(sentences(3), 9, 0.2)]
    hypotheses = noisy(references[0], 4, rate)
    hypotheses[0] = ""
    rows = significance.statistics(hypotheses, references, "en")
    expected = BLEU().corpus_score(hypotheses, references).score
    assert float(significance.bleu_of(rows.sum(0))) == pytest.approx(expected, abs=1e-9)


# Benjamini and Hochberg (1995), "Controlling the False Discovery Rate: A Practical and Powerful Approach
# to Multiple Testing", Journal of the Royal Statistical Society B 57(1), section 4.1: 15 hypotheses on
# the treatment of myocardial infarction. At a rate of 5 % the first four are significant, because
# p(4) = 0.0095 <= 4/15 x 0.05 = 0.013, and no later p-value is under its bound.
PAPER = [
    *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459),
    *(0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000),
]


def test_benjamini_hochberg_gives_the_result_of_its_paper():
    assert [adjusted <= 0.05 for adjusted in adjusted_p_values(PAPER)] == [True] * 4 + [False] * 11
    assert adjusted_p_values(PAPER)[3] == pytest.approx(0.0095 * 15 / 4)


def counts(lines, references):
    return significance.statistics(lines, [references], "en")


def error_of_mean(pairs, references):
    drawn = significance.drawn_scores(pairs, references)
    return np.array([ours - theirs for ours, theirs in drawn]).mean(0).std()


def test_the_error_of_a_mean_agrees_with_sacrebleu_on_drawn_references():
    rng = np.random.default_rng(7)
    references = [sentences(1, 30), sentences(2, 30)]
    references[1][:15] = references[0][15:]  # half of the sentences are in both test sets
    systems = [[noisy(lines, seed, 0.3) for seed in (3, 4)] for lines in references]
    pairs = [
        (counts(ours, lines), counts(theirs, lines))
        for (ours, theirs), lines in zip(systems, references, strict=True)
    ]
    found = error_of_mean(pairs, references)
    texts = list(dict.fromkeys(references[0] + references[1]))
    means = []
    for _ in range(150):
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
    error = error_of_mean([pair], [references])
    assert error_of_mean([pair] * 4, [references] * 4) == pytest.approx(error)
    low, high = significance.compare_statistics(*pair).interval
    assert error == pytest.approx((high - low) / (2 * 1.96), rel=0.1)
    # With references of their own, the errors are independent.
    others = [[f"{text} {i}" for text in references] for i in range(4)]
    assert error_of_mean([pair] * 4, others) == pytest.approx(error / 2, rel=0.1)
    assert error_of_mean([(pair[0], pair[0])], [references]) == 0


def random_test_sets(rng, are_shared):
    """Returns statistics of 60 sentences in each of 8 languages, which may share luck and length."""
    rows, groups = [], []
    for language in range(8):
        if not (are_shared and rows):
            words = np.minimum(1 + rng.geometric(0.15, 60), 40)
            luck = rng.normal(0.5, 0.25, 60)
        rows.append(random_counts(rng, words, 0.0, np.clip(luck + rng.normal(0, 0.1), 0.05, 0.95)))
        groups.append([f"{n if are_shared else (language, n)}" for n in range(60)])
    return rows, groups


@pytest.mark.parametrize("are_shared", [True, False])
def test_the_interval_of_a_mean_covers_languages_and_shared_sentences(monkeypatch, are_shared):
    monkeypatch.setattr(significance, "DRAWS_OF_MEAN", 200)
    rng, found = np.random.default_rng(5), []
    for _ in range(150):
        rows, groups = random_test_sets(rng, are_shared)
        scores = significance.drawn_scores([[own] for own in rows], groups)
        values = [float(significance.bleu_of(own.sum(0))) for own in rows]
        drawn = np.array([own for (own,) in scores])
        intervals = (significance.interval_of_mean(values, d) for d in (drawn, None))
        found.append((np.mean(values), *itertools.chain(*intervals)))
    means, low, high, student_low, student_high = np.array(found).T
    assert 0.91 <= np.mean((low <= means.mean()) & (means.mean() <= high)) <= 0.98
    covered = np.mean((student_low <= means.mean()) & (means.mean() <= student_high))
    assert covered < 0.8 if are_shared else covered > 0.9


def test_the_spread_of_few_languages_says_nothing():
    drawn = np.random.default_rng(0).normal(2, 0.5, (2, 4000))
    low, high = significance.interval_of_mean([1.0, 3.0], drawn)
    assert (low, high) == pytest.approx((2 - 1.96 * 0.35, 2 + 1.96 * 0.35), abs=0.05)
    assert significance.interval_of_mean([1.0, 3.0]) is None
    # Student's interval, if the sentences are unknown.
    assert significance.interval_of_mean([1.0, 2.0, 3.0]) == pytest.approx(
        (2 - 2.484, 2 + 2.484), abs=0.001
    )
