"""The tables of a comparison have the numbers of the systems, and say what is missing."""

import re

from gshard_nmt.evaluation.report.tables import systems_section
from gshard_nmt.evaluation.systems import Budget, Result, Systems, as_json
from tests.evaluation.made_systems import made_test, system_of


def section_of(*systems, baselines=()):
    return systems_section(Systems(systems[0], systems[1:], baselines), ["an alarm"])


def rows_of(section: str) -> list[list[str]]:
    """Returns the cells of each row of the first table."""
    table = section.partition("</table>")[0]
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in table.split("<tr>")[1:]]


def test_the_table_of_systems_has_their_size_cost_and_quality():
    moe = Budget(6 * 10**11, 2048, 36, 500, 10**9, 2048, 0.72, 4e6, 22.4, 4.0)
    systems = [
        system_of("MoE", {0: 44.3, 1: 40.0}, budget=moe),
        system_of("T <96>", {0: 30.0, 1: 20.0}, budget=Budget(experts=0), run=None),
    ]
    section = section_of(*systems)
    assert rows_of(section.html)[:3] == [
        ["system", "weights", "experts", "layers", "devices", "steps per second", "tokens of a step",
         "tokens", "device-years", "days", "BLEU", "gain"],
        ["MoE", "600.0\u202fbillion", "2,048", "36", "2,048", "0.72", "4.0\u202fmillion",
         "1.0\u202fbillion", "22.4", "4", "42.1", "+22.1"],
        ["T &lt;96&gt;", "–", "dense", *["–"] * 7, "25.0", "+5.0"],
    ]  # fmt: skip
    assert section.data == as_json(systems)
    assert section.alarms == ("an alarm",)
    assert "img" not in section.html  # the cost of one system only is known


def test_gaps_are_said_and_means_over_all_and_over_common_languages_are_told_apart():
    content = section_of(
        system_of("a", {0: 30.0, 1: 40.0, 2: 50.0}), system_of("b", {0: 32.0, 2: 50.0})
    ).html
    head, first, second, *_ = rows_of(content)
    assert head[-4:] == ["directions", "BLEU", "BLEU, common", "gain"]
    assert [first[-4:], second[-4:]] == [
        ["3", "40.0 (15.2 to 64.8)", "40.0", "+20.0 (-4.8 to +44.8)"],
        ["2", "41.0", "41.0", "+21.0"],
    ]
    assert "the mean over the 2 directions that all systems have" in content
    assert "<p>b has no scores of l1.</p>" in content
    groups = rows_of(content.partition("<h3>High")[2])
    assert groups[0][1] == "high (1 of 1,000,000 to 1,000,000 pairs)"
    assert groups[1:] == [["a", "+10.0", "+20.0", "+30.0"], ["b", "+12.0", "– (of 0)", "+30.0"]]


def test_the_baselines_are_a_row_and_a_point():
    budget, result = Budget(device_years=29.0), Result(made_test("l0"), 20.0)
    baseline = system_of("l0", {}, budget=budget, results=[result])
    systems = [system_of(name, {0: 30.0}) for name in ("a", "b")]
    # Two points are a table.
    assert "<img" not in section_of(systems[0], baselines=(baseline,)).html
    content = section_of(*systems, baselines=(baseline,)).html
    assert rows_of(content.partition("<h3>High")[0])[3][0] == "bilingual baselines"
    assert "adds up all bilingual models" in content
    assert content.count("<img") == 1
