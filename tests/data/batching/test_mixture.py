"""The mixture as index arithmetic: closed forms against loops over every draw."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.batching.mixture import PERIOD, Mixture, apportion, floor_sum

weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1)), min_size=1, max_size=6).filter(any)


def as_rates(values) -> tuple[float, ...]:
    return tuple(np.array(values) / sum(values))


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 10**9), min_size=1, max_size=12).filter(any),
    extra=st.integers(0, 1000),
)
def test_whole_numbers_near_the_rates_sum_to_the_total(sizes, extra):
    rates = np.array(sizes) / sum(sizes)
    total = len(sizes) + extra
    counts = apportion(rates, total)
    assert counts.sum() == total
    np.testing.assert_array_equal(counts > 0, rates > 0)
    # A count is above its quota by 1 or more only if the minimum of 1 asks for it.
    assert ((counts <= np.ceil(rates * total)) | (counts == 1)).all()


@settings(deadline=None, max_examples=100)
@given(
    number=st.integers(0, 200),
    modulus=st.integers(1, 1000),
    step=st.integers(0, 3000),
    start=st.integers(0, 3000),
)
def test_a_sum_of_floors_is_the_sum_of_its_terms(number, modulus, step, start):
    expected = sum((step * j + start) // modulus for j in range(number))
    assert floor_sum(number, modulus, step, start) == expected


@settings(deadline=None, max_examples=12)
@given(values=weights, seed=st.integers(0, 1000), stream=st.integers(0, 3))
def test_the_counts_before_a_draw_are_what_the_draws_show(values, seed, stream):
    mixture = Mixture((as_rates(values), as_rates(values[::-1])), 4, seed)
    for phase in (0, 1):
        for begin in (0, PERIOD - 150):  # the numbering of labels begins again after PERIOD draws
            drawn = mixture.components(stream, phase, np.arange(begin, begin + 300))
            shown = np.cumsum(drawn[:, None] == np.arange(len(values)), axis=0)
            before = mixture.counts_until(stream, phase, begin)
            after = mixture.counts_until(stream, phase, np.arange(begin + 1, begin + 301))
            np.testing.assert_array_equal(after - before, shown)
            assert (after.sum(1) == np.arange(begin + 1, begin + 301)).all()


@settings(deadline=None, max_examples=12)
@given(values=weights, seed=st.integers(0, 1000))
def test_any_consecutive_draws_are_near_the_rates(values, seed):
    mixture = Mixture((as_rates(values),), 1, seed)
    begins = np.arange(0, 10**6, 19999)
    for number in (64, 5000):
        counts = mixture.counts_until(0, 0, begins + number) - mixture.counts_until(0, 0, begins)
        assert abs(counts - number * np.array(as_rates(values))).max() < 6


def test_a_rare_component_has_its_rate_and_no_floor():
    """10,000 pairs beside 25 billion at temperature 1: 4 draws in 10 million."""
    rates = as_rates([25e9, 10_000])
    mixture = Mixture((rates,), 256, 1)
    drawn = mixture.counts_until(np.arange(256), 0, 10**9).sum(0)[1]
    assert abs(drawn - 256e9 * rates[1]) < 0.01 * drawn
    # The streams do not draw it at the same time.
    early = mixture.counts_until(np.arange(256), 0, 10**5)[:, 1]
    assert early.max() == 1
    assert 1 <= early.sum() <= 40
