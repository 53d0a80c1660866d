"""The figures show every system, gaps as gaps, and gains only if there are baselines."""

import numpy as np
import pytest

from gshard_nmt.evaluation.report import figures
from gshard_nmt.evaluation.systems import Budget, System
from tests.evaluation.made_systems import result_of, system_of


def scores(number: int, plus: float = 0.0) -> dict[int, float]:
    return {n: 20 + plus + (7 * n) % 11 for n in range(number)}


def lines_of(axes) -> dict[str, object]:
    return {line.get_label(): line for line in axes.lines}


def test_the_sliding_mean_uses_whole_windows_and_leaves_out_those_that_miss_most():
    centers, means = figures.sliding_mean(np.arange(20.0), 10)
    np.testing.assert_allclose(means, centers)
    _, means = figures.sliding_mean(np.full(100, 3.0), 10)
    np.testing.assert_allclose(means, [3.0] * 91)
    _, means = figures.sliding_mean(np.array([1.0, np.nan, 3.0, np.nan, np.nan, np.nan, 5.0]), 3)
    np.testing.assert_allclose(means, [2.0, np.nan, np.nan, np.nan, np.nan])


@pytest.mark.parametrize(
    ("baseline", "label"), [(20.0, "gain in BLEU over the baseline"), (None, "BLEU")]
)
def test_one_system_shows_each_language_and_its_trend(baseline, label):
    results = [result_of(n, bleu, baseline) for n, bleu in scores(25).items()]
    top, bottom = figures.draw_trend([System("a", results=results)], "a run").axes
    assert top.get_ylabel() == label
    values = [bleu - (baseline or 0) for bleu in scores(25).values()]
    np.testing.assert_allclose(lines_of(top)["each language"].get_ydata(), values)
    assert len(lines_of(top)["mean of 10 neighbors"].get_xdata()) == 16
    assert [bar.get_height() for bar in bottom.patches] == [r.test.train_pairs for r in results]


def test_several_systems_have_a_line_each_and_dense_ones_are_dashed():
    dense = system_of("dense", scores(30, 2.0), budget=Budget(experts=0))
    third = system_of("third", scores(30, 4.0))
    top = figures.draw_trend([system_of("moe", scores(30)), dense, third], "t").axes[0]
    lines = {name.split(":")[0]: line for name, line in lines_of(top).items() if ":" in name}
    styles = {name: line.get_linestyle() for name, line in lines.items()}
    assert styles == {"moe": "-", "dense (dense)": "--", "third": "-"}
    assert len({line.get_color() for line in lines.values()}) == 3
    np.testing.assert_allclose(lines["third"].get_ydata() - lines["moe"].get_ydata(), 4.0)


def test_missing_languages_are_gaps():
    part = system_of("part", {n: bleu for n, bleu in scores(30).items() if n not in range(5, 13)})
    drawn = figures.draw_trend([system_of("all", scores(30)), part], "t")
    values = drawn.axes[0].lines[-1].get_ydata()
    assert np.isnan(values).any()
    assert not np.isnan(values).all()


@pytest.mark.parametrize(("languages", "labels"), [(100, 100), (250, 84)])
def test_labels_of_many_languages_have_room(languages, labels):
    drawn = figures.draw_trend([system_of("a", scores(languages))], "t")
    ticks = drawn.axes[1].get_xticks()
    assert len(ticks) == labels
    room = 72 * drawn.get_figwidth() / languages * (ticks[1] - ticks[0])
    assert room > 7.5  # the size of a label, in points


def test_cost_against_quality_has_a_point_for_each_known_cost():
    systems = [
        system_of("a", scores(3)),
        system_of("b", scores(3, 1.0), budget=Budget(device_years=50.0)),
        system_of("c", scores(3), budget=Budget()),
        system_of("without results", {}),
    ]
    baselines = system_of("baselines", scores(3), budget=Budget(device_years=29.0))
    axes = figures.draw_cost(systems, baselines).axes[0]
    points = {text.get_text(): text.xy for text in axes.texts}
    mean = float(np.mean(list(scores(3).values()))) - 20
    assert points["a"] == (0.5, pytest.approx(mean))
    assert points["b"] == (50.0, pytest.approx(mean + 1))
    assert points["baselines"] == (29.0, 0.0)
    assert len(points) == 3
    assert axes.get_xlabel() == "cost of training in device-years"
    assert figures.cost_unit(1e-4)[0] == "minutes"


def test_images_are_repeatable():
    systems = [system_of("a $b_$", scores(3)), system_of("c", scores(3))]
    first, again = (
        figures.image(lambda: figures.draw_trend(systems, "t"), "svg") for _ in range(2)
    )
    assert first == again
