"""The section about faults in the outputs."""

import json

from gshard_nmt.evaluation.report import outputs_section
from gshard_nmt.evaluation.texts import translations


def test_an_alarm_names_all_directions_with_the_same_fault():
    tests = [
        translations.TestSet(f"x{n}", f"x{n}", "en", 9, ["un chat"] * 20, ["a cat"] * 20)
        for n in range(9)
    ]
    outputs = {"": {(test.source, "en"): [""] * 20 for test in tests[:2]}}
    assert outputs_section.check(tests, outputs).alarms[0] == (
        "x0-en: 20 of 20 outputs are empty (100 %; references 0 %); the same fault in x1-en."
    )
    outputs = {"": {}, "baseline": {(test.source, "en"): [""] * 20 for test in tests}}
    (alarm,) = outputs_section.check(tests, outputs).alarms
    assert "x3-en (baseline), x4-en (baseline) and 4 more have faults" in alarm


def test_the_section_has_counts_and_three_examples():
    sources = [f"le <b> {chr(97 + n)}" for n in range(20)]
    test = translations.TestSet("fr", "fr", "en", 9, sources, [f"the {s}" for s in sources])
    outputs = {"": {("fr", "en"): [""] * 20}, "baseline": {}}
    section = outputs_section.check([test], outputs)
    (row,) = section.data
    empty = row["faults"]["empty"]
    assert (empty["count"], empty["possible"], empty["share"]) == (20, 20, 1)
    assert [example["line"] for example in empty["examples"]] == [1, 2, 3]
    assert section.alarms[0] == "fr-en: 20 of 20 outputs are empty (100 %; references 0 %)."
    assert "le &lt;b&gt; a" in section.html
    assert "<b> a" not in section.html
    assert json.loads(json.dumps(section.data)) == section.data
