"""The tokens that a run needs to reach a cross-entropy, from logs with values that a rule gives."""

import math

import numpy as np
import pytest

from gshard_nmt.evaluation.report import convergence
from gshard_nmt.evaluation.report.convergence import Curve
from tests.evaluation.run_folders import make_run, write_metrics


def training_lines(values, start: int = 1):
    return [
        {"step": step, "nll": value, "tokens": 100 * step}
        for step, value in enumerate(values, start)
    ]


def test_the_dev_value_is_used_if_every_run_has_it_five_times(tmp_path):
    run = make_run(tmp_path / "a")
    lines = training_lines([9.0] * 20)
    # A line of dev values has no tokens; step 12 is between two lines that have them.
    lines[10:15] = []
    of_dev = [{"step": 4 * n, "dev_nll": 4.0 - n / 2} for n in range(1, 6)]
    write_metrics(run, [*lines, *of_dev])
    name, (curve,) = convergence.curves_of([run])
    assert name == "dev_nll"
    np.testing.assert_allclose(curve.tokens, [400, 800, 1200, 1600, 2000])
    reached = [curve.tokens_to_reach(value) for value in (4.0, 3.5, 2.6, 1.4)]
    assert reached == [400, 400, 1200, None]
    write_metrics(run, [*lines, *of_dev[:4]])
    assert convergence.curves_of([run])[0] == "nll"


def test_the_training_value_is_smoothed_and_used_if_a_run_has_no_dev_value(tmp_path):
    first, second = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    write_metrics(first, [*training_lines([4.0] * 10), {"step": 10, "dev_nll": 3.0}])
    write_metrics(second, training_lines([4.0] * 10 + [1.0] + [3.0] * 10))
    name, curves = convergence.curves_of([first, second])
    assert name == "nll"
    # One easy batch does not count as reached: the mean of 10 values is (9 x 4 + 1) / 10.
    assert curves[1].values[10] == pytest.approx(3.7)
    assert curves[1].tokens_to_reach(3.05) == 1800


def test_a_damaged_log_and_a_run_without_a_log_are_no_error(tmp_path):
    run, empty = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    event = {"step": 3, "event": "divergence", "nll": 0.1, "tokens": 3}
    write_metrics(run, [*training_lines([5.0, math.nan, 3.0]), event, {"no": "step"}])
    with run.metrics.open("a") as log:
        log.write('[1]\n{"step": 4, "nll"')
    _, (curve, nothing) = convergence.curves_of([run, empty])
    np.testing.assert_allclose(curve.values, [5.0, 4.0])
    assert nothing is None


def test_the_chosen_values_were_reached_by_all_between_and_by_the_best():
    tokens = np.array([1.0, 2.0, 3.0])
    good, poor = Curve(tokens, np.array([5.0, 3, 1.234])), Curve(tokens, np.array([5.0, 4, 2.111]))
    values = convergence.chosen_values([good, poor])
    assert values == [2.12, 1.68, 1.24]
    reached = [[curve.tokens_to_reach(v) is not None for v in values] for curve in (good, poor)]
    assert reached == [[True, True, True], [True, False, False]]
    assert convergence.chosen_values([good]) == [3.12, 2.18, 1.24]


def test_the_table_marks_runs_with_other_vocabularies_or_languages(tmp_path):
    run = make_run(tmp_path / "run")
    other = make_run(tmp_path / "other", files=dict.fromkeys(run.identity(), "1" * 64))
    runs = {"run": run, "other": other, "few": make_run(tmp_path / "few", ["de"])}
    assert convergence.convergence_section(runs) is None
    write_metrics(run, [{"step": 1, "nll": 4.0, "tokens": 70}])
    write_metrics(other, [{"step": 1, "nll": 5.0, "tokens": 7_000_000}])
    section = convergence.convergence_section(runs)
    assert section.data["cross_entropies"] == [5.0, 4.5, 4.0]
    assert section.data["tokens"]["run"] == [70.0] * 3
    assert section.data["tokens"]["other"] == [7e6, None, None]
    assert section.data["not_comparable"] == ["other", "few"]
    cells = "<td>7.0\u202fmillion</td><td>not reached</td><td>not reached</td><td>5</td></tr>"
    assert f"<tr><th>other *</th>{cells}" in section.html
    assert "of the training batches" in section.html
