"""The figures show every system, gaps as gaps, and gains only if there are baselines."""

import numpy as np
import pytest

from gshard_nmt.evaluation.report import figure
from gshard_nmt.evaluation.report.drawing import DARK
from gshard_nmt.evaluation.systems.systems import Budget, System
from tests.evaluation.made_systems import result_of, system_of


def scores(number: int, plus: float = 0.0) -> dict[int, float]:
    return {n: 20 + plus + (7 * n) % 11 for n in range(number)}


def lines_of(axes) -> dict[str, object]:
    return {line.get_label(): line for line in axes.lines}


def test_the_sliding_mean_uses_whole_windows_only():
    centers, means = figure.sliding_mean([3.0] * 100, 10)
    assert len(means) == 91
    np.testing.assert_allclose(means, 3.0)
    centers, means = figure.sliding_mean(np.arange(20.0), 10)
    np.testing.assert_allclose(means, centers)


def test_the_sliding_mean_leaves_out_missing_values_and_windows_that_miss_most():
    values = [1.0, np.nan, 3.0, np.nan, np.nan, np.nan, 5.0]
    _, means = figure.sliding_mean(values, 3)
    np.testing.assert_allclose(means, [2.0, np.nan, np.nan, np.nan, np.nan])
    low, high = figure.confidence_band(values, 3)
    np.testing.assert_array_equal(np.isnan(low), np.isnan(means))
    assert low[0] == 1.0
    assert high[0] == 3.0


def test_the_confidence_band_is_that_of_a_plain_bootstrap():
    values = np.random.default_rng(3).normal(10, 4, 14)
    low, high = figure.confidence_band(values, 10)
    rng = np.random.default_rng(8)
    for start in range(5):
        means = [np.mean(rng.choice(values[start : start + 10], 10)) for _ in range(4000)]
        np.testing.assert_allclose(
            [low[start], high[start]], np.percentile(means, [2.5, 97.5]), atol=0.4
        )
    low, high = figure.confidence_band([4.0] * 12, 10)
    assert set(low) == set(high) == {4.0}


@pytest.mark.parametrize(
    ("baseline", "label"),
    [(20.0, "gain in BLEU over the bilingual baseline"), (None, "BLEU")],
)
def test_one_system_shows_each_language_and_its_trend(baseline, label):
    results = [result_of(n, bleu, baseline) for n, bleu in scores(25).items()]
    top, bottom = figure.draw_trend([System("a", results)], "a run").axes
    assert top.get_ylabel() == label
    values = [bleu - (baseline or 0) for bleu in scores(25).values()]
    np.testing.assert_allclose(lines_of(top)["each language"].get_ydata(), values)
    assert len(lines_of(top)["mean of 10 neighbors"].get_xdata()) == 16
    assert [bar.get_height() for bar in bottom.patches] == [r.train_pairs for r in results]


def test_several_systems_have_a_line_each_dense_dashed_and_published_without_a_band():
    dense = system_of("dense", scores(30, 2.0), budget=Budget(experts=0))
    published = system_of("paper", scores(30, 4.0), run=None)
    top = figure.draw_trend([system_of("moe", scores(30)), dense, published], "t").axes[0]
    lines = {name.split(":")[0]: line for name, line in lines_of(top).items() if ":" in name}
    assert [lines[name].get_linestyle() for name in ("moe", "dense (dense)", "paper")] == [
        *("-", "--", "-")
    ]
    assert len({line.get_color() for line in lines.values()}) == 3
    assert len(top.collections) == 2
    gap = lines["paper"].get_ydata() - lines["moe"].get_ydata()
    np.testing.assert_allclose(gap, 4.0)


def test_a_missing_language_is_a_gap_and_is_named():
    part = system_of("part", {n: bleu for n, bleu in scores(30).items() if n not in range(5, 13)})
    drawn = figure.draw_trend([system_of("all", scores(30)), part], "t")
    values = drawn.axes[0].lines[-1].get_ydata()
    assert np.isnan(values).any()
    assert not np.isnan(values).all()
    assert "part has no scores of l5, l6, l7, l8, l9, l10, l11, l12" in drawn.get_supxlabel()


def test_a_missing_baseline_is_named():
    results = [result_of(n, 30.0, None if n == 2 else 20.0) for n in range(5)]
    drawn = figure.draw_trend([System("a", results)], "t")
    assert drawn.get_supxlabel() == "no baseline: l2"


def test_few_languages_are_shown_one_by_one():
    systems = [system_of("a", scores(3)), system_of("b", scores(3, 1.0))]
    top = figure.draw_trend(systems, "t").axes[0]
    for number, line in enumerate(top.lines[1:]):
        np.testing.assert_allclose(
            line.get_ydata(), [bleu - 20 + number for bleu in scores(3).values()]
        )
    assert len(top.collections) == 2


@pytest.mark.parametrize(("languages", "labels"), [(100, 100), (250, 84)])
def test_labels_of_many_languages_have_room(languages, labels):
    drawn = figure.draw_trend([system_of("a", scores(languages))], "t")
    ticks = drawn.axes[1].get_xticks()
    assert len(ticks) == labels
    room = 72 * drawn.get_figwidth() / languages * (ticks[1] - ticks[0])
    assert room > 7.5  # the size of a label, in points


def test_a_dark_page_has_a_dark_image():
    systems = [system_of("a", scores(3))]
    light, dark = (figure.trend(systems, "t", "svg", dark) for dark in (False, True))
    assert DARK.background.encode() in dark
    assert DARK.background.encode() not in light
