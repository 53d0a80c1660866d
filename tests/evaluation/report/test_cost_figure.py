"""The figure of cost has a point for each system of known cost."""

import dataclasses

import numpy as np
import pytest

from gshard_nmt.evaluation.report import cost_figure
from gshard_nmt.evaluation.report.drawing import DARK
from gshard_nmt.evaluation.systems.systems import Budget
from tests.evaluation.made_systems import system_of


def scores(number: int, plus: float = 0.0) -> dict[int, float]:
    return {n: 20 + plus + (7 * n) % 11 for n in range(number)}


def test_cost_against_quality_has_a_point_for_each_known_cost():
    systems = [
        system_of("a", scores(3)),
        system_of("b", scores(3, 1.0), budget=Budget(device_years=50.0)),
        system_of("c", scores(3), budget=Budget()),
    ]
    baselines = system_of("baselines", scores(3), budget=Budget(device_years=29.0))
    axes = cost_figure.draw_cost(systems, baselines).axes[0]
    points = {text.get_text(): text.xy for text in axes.texts}
    mean = pytest.approx(np.mean(list(scores(3).values())) - 20)
    one_more = pytest.approx(mean.expected + 1)
    assert points == {"a": (0.5, mean), "b": (50.0, one_more), "baselines": (29.0, 0.0)}
    assert axes.get_xlabel() == "cost of training in device-years"
    small = [dataclasses.replace(s, budget=Budget(device_years=1e-4)) for s in systems]
    assert "device-minutes" in cost_figure.draw_cost(small, None).axes[0].get_xlabel()


def test_a_dark_page_has_a_dark_image():
    systems = [system_of("a", scores(3))]
    light, dark = (cost_figure.cost(systems, None, "svg", dark) for dark in (False, True))
    assert DARK.background.encode() in dark
    assert DARK.background.encode() not in light
