"""The alarm for experts that collapse."""

import pytest

from gshard_nmt.run.log.alarms import LINES, CollapseAlarm


def lines_of(experts: int, *series: list[float]) -> list[str]:
    """Returns the lines for these effective experts of layers a, b, ..., one entry for each log line."""
    names = "abc"[: len(series)]
    alarm = CollapseAlarm(experts, names)
    return [
        alarm.check(
            {f"effective_experts/{n}": value for n, value in zip(names, values, strict=True)}
        )
        for values in zip(*series, strict=True)
    ]


def test_a_collapse_is_told_once_and_so_is_its_end():
    low, high = 1.9, 2.0
    lines = lines_of(8, [low] * 5 + [high] * 4 + [low] * 3)
    assert [bool(line) for line in lines] == [i in (2, 7, 11) for i in range(12)]
    assert lines[2].startswith(
        "ALARM: few experts get most tokens in a (1.9 effective experts of 8); "
    )
    assert lines[7] == "the experts share the tokens again in a (2.0 effective experts of 8)"
    assert lines[11] == lines[2]


def test_a_few_low_lines_are_no_alarm():
    assert not any(lines_of(8, [1.0, 1.0, 5.0] * 4))
    assert not any(lines_of(8, [float("nan")] * 4))


def test_each_layer_is_judged_alone():
    lines = lines_of(8, [1.0] * LINES, [8.0] * LINES, [1.5] * LINES)
    assert "a (1.0 effective experts of 8), c (1.5 effective experts of 8)" in lines[-1]


@pytest.mark.parametrize(("experts", "value"), [(2, 1.0), (4, 1.05), (2048, 511.0)])
def test_a_collapse_is_seen_with_any_number_of_experts(experts, value):
    assert lines_of(experts, [value] * LINES)[-1]
    assert not any(lines_of(experts, [value + 1] * LINES))


def test_a_dense_model_has_no_alarm():
    assert CollapseAlarm(0, []).check({"loss": 1.0}) == ""
