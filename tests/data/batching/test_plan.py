"""A plan counts what the mixture draws, to the last draw, and warns of extremes."""

import numpy as np
import pytest

from gshard_nmt.data.batching.mixture import Mixture, sampling_rates
from gshard_nmt.data.batching.plan import Phase, counts_until, make_plan


@pytest.mark.parametrize("draws", [0, 1, 63, 64, 65, 1000])
def test_the_counts_are_those_of_the_draws(draws):
    mixture = Mixture(((0.7, 0.2, 0.1), (0.0, 0.5, 0.5)), 4, 3)
    for phase in (0, 1):
        drawn = [
            mixture.components(stream, phase, np.arange(len(range(stream, draws, 4))))
            for stream in range(4)
        ]
        expected = np.bincount(np.concatenate(drawn), minlength=3)
        np.testing.assert_array_equal(counts_until(mixture, phase, draws), expected)


def plan(sizes, temperature, steps, per_step):
    components = [(f"l{n}", size, 10.0) for n, size in enumerate(sizes)]
    half = steps // 2
    phases = [Phase(1, half, "a"), Phase(half + 1, steps, "b")] if half else [Phase(1, steps, "a")]
    rates = tuple(sampling_rates(sizes, temperature))
    return make_plan(
        components, Mixture((rates,) * len(phases), 8, 1), phases, [per_step] * len(phases)
    )


def test_a_plan_adds_up():
    result = plan((100_000, 1000), 1.0, 100, 1010.0)
    uses = result.uses
    assert sum(use.draws for use in uses) == 101_000
    assert sum(use.share for use in uses) == pytest.approx(1)
    assert [use.epochs for use in uses] == pytest.approx([1, 1], rel=0.02)
    assert [use.oversampling for use in uses] == pytest.approx([1, 1], rel=0.02)
    assert uses[0].tokens == uses[0].draws * 10
    assert (result.points[-1], 50 in result.points) == (100, True)


def test_warnings_name_extremes():
    (often,) = plan((1_000_000, 10), 100.0, 1000, 2000.0).warnings()
    assert often.startswith("l1 (94,")
    assert "times): each example is seen more than 100 times" in often
    (rarely,) = plan((10**9, 10**9), 1.0, 100, 10.0).warnings()
    assert rarely.startswith("l0, the largest: only 0.0% of its examples are seen.")
    assert list(plan((10_000, 5000), 1.0, 100, 1000.0).warnings()) == []


def test_a_component_that_is_never_drawn_is_named():
    mixture = Mixture((np.array([1.0, 0.0]),), 1, 0)
    components = [("l0", 10, 20.0), ("l1", 10**9, 20.0)]
    unused = list(make_plan(components, mixture, [Phase(1, 10, "")], [5.0]).warnings())
    assert unused == ["l1: never seen in these steps. Raise its weight, or train longer."]
    warnings = list(plan((10_000, 1), 1.0, 1, 3.0).warnings())
    assert warnings[0].startswith("l1: never seen in these steps.")
