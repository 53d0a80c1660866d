"""Temperature sampling as index arithmetic."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.mixture import Mixture, apportion, permute, sampling_rates


@pytest.mark.parametrize(
    ("temperature", "golden"),
    [(1, [0.909091, 0.090909]), (5, [0.613137, 0.386863]), (100, [0.505756, 0.494244])],
)
def test_rates_of_a_thousand_and_a_hundred(temperature, golden):
    np.testing.assert_allclose(sampling_rates([1000, 100], temperature), golden, atol=1e-6)


@settings(deadline=None, max_examples=50)
@given(size=st.integers(1, 3000), key=st.integers(0, 2**63))
def test_permute_is_a_permutation(size, key):
    permuted = permute(np.arange(size), np.full(size, size), np.full(size, key, np.uint64))
    np.testing.assert_array_equal(np.sort(permuted), np.arange(size))


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 10**9), min_size=1, max_size=12),
    temperature=st.sampled_from([0.5, 1.0, 5.0]),
    extra=st.integers(0, 1000),
)
def test_whole_numbers_near_the_rates_sum_to_the_total(sizes, temperature, extra):
    rates = sampling_rates(sizes, temperature)
    total = len(sizes) + extra
    counts = apportion(rates, total)
    assert counts.sum() == total
    assert counts.min() >= 1
    # A count is above its quota by 1 or more only if the minimum of 1 asks for it.
    assert ((counts <= np.ceil(rates * total)) | (counts == 1)).all()


def test_more_languages_than_draws_in_a_period_are_an_error():
    with pytest.raises(ValueError, match="3 languages need a period of 3 draws, not 2"):
        apportion(np.full(3, 1 / 3), 2)


@settings(deadline=None, max_examples=25)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_an_epoch_shows_each_example_exactly_once(sizes, seed):
    """At temperature 1 with a period of all examples, each period is an epoch of every language."""
    period = sum(sizes)
    mixture = Mixture(tuple(sizes), 1.0, seed, period=period)
    every_example = {(l, e) for l, size in enumerate(sizes) for e in range(size)}
    for epoch in range(3):
        language, example = mixture.draw(np.arange(epoch * period, (epoch + 1) * period))
        assert set(zip(language.tolist(), example.tolist(), strict=True)) == every_example


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    temperature=st.sampled_from([1.0, 5.0, 100.0]),
    seed=st.integers(0, 1000),
)
def test_every_period_has_its_counts_and_every_epoch_each_example_once(sizes, temperature, seed):
    mixture = Mixture(tuple(sizes), temperature, seed, period=256)
    language, example = mixture.draw(np.arange(3 * 256))
    for period in range(3):
        part = language[period * 256 : (period + 1) * 256]
        np.testing.assert_array_equal(np.bincount(part, minlength=len(sizes)), mixture.counts)
    for l, size in enumerate(sizes):
        shown = example[np.flatnonzero(language == l)]
        rest = mixture.counts[l] * 3 % size
        in_full = len(shown) - rest
        # A period shuffles its draws, so the test counts the examples of all periods together.
        counts = np.bincount(shown, minlength=size)
        assert counts.min() >= in_full // size
        assert counts.max() <= in_full // size + (rest > 0)


def test_draws_do_not_depend_on_how_they_are_asked_for():
    mixture = Mixture((50, 7, 400), 5.0, 3)
    whole = mixture.draw(np.arange(1000))
    order = np.random.default_rng(0).permutation(1000)
    shuffled = mixture.draw(order)
    for in_order, as_asked in zip(whole, shuffled, strict=True):
        np.testing.assert_array_equal(in_order[order], as_asked)
