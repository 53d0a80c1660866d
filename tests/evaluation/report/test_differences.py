"""Differences between systems: the false discovery rate is controlled over the directions of a run."""

import dataclasses

import pytest

from gshard_nmt.evaluation.metrics.significance import adjusted_p_values
from gshard_nmt.evaluation.report import differences
from gshard_nmt.evaluation.systems.systems import System
from tests.evaluation.made_systems import result_of, system_of

P_VALUES = (0.001, 0.02, 0.04, 0.9)
DIFFERENCES = (2.0, -1.0, 0.5, 0.1)


def compared(name: str = "B") -> System:
    """Returns a run whose four directions have these p-values."""
    results = [
        result_of(number, 25, difference=difference, difference_ci95=(-1, 3), difference_p=p)
        for number, (difference, p) in enumerate(zip(DIFFERENCES, P_VALUES, strict=True))
    ]
    return dataclasses.replace(system_of(name, {}), results=differences.adjusted(results))


def test_the_p_values_of_a_run_are_adjusted_together():
    values = [result.difference_adjusted_p for result in compared().results]
    assert values == pytest.approx(adjusted_p_values(P_VALUES))
    assert values == pytest.approx([0.004, 0.04, 0.16 / 3, 0.9])


def test_unknown_p_values_stay_unknown_and_do_not_count():
    results = [result_of(0, 25, difference_p=0.02), result_of(1, 25)]
    assert [r.difference_adjusted_p for r in differences.adjusted(results)] == [0.02, None]


def test_the_section_counts_what_is_significant():
    main = system_of("A", dict.fromkeys(range(4), 24))
    (section,) = differences.sections([main, compared("<B>")])
    # 0.02 is below 0.05 after the adjustment, and 0.04 is not.
    assert section.data == {
        "<B>": {"directions": 4, "better": 1, "worse": 1, "false_discovery_rate": 0.05}
    }
    (note,) = section.notes
    assert note.startswith(
        "<B>: +0.4 BLEU (-1.6 to +2.4) on average compared with A; significantly better in 1 of 4 "
        "directions, and significantly worse in 1 (approximate randomization, "
    )
    assert "&lt;B&gt;" in section.html
    assert "<B>" not in section.html
    assert section.html.count("<td>yes</td>") == 2


def test_without_another_run_there_is_no_section():
    main = system_of("A", {0: 24})
    assert differences.sections([main]) == []
    published = dataclasses.replace(system_of("paper", {0: 30}), run=None)
    assert differences.sections([main, published]) == []
