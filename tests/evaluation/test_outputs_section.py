"""The section about faults in the outputs."""

import json

from gshard_nmt.evaluation import outputs_section, translations


def test_an_alarm_names_all_directions_with_the_same_fault():
    tests = [
        translations.TestSet(f"x{n}", f"x{n}", "en", 9, ["un chat"] * 9, ["a cat"] * 9)
        for n in range(9)
    ]
    outputs = {"": {(test.source, "en"): [""] * 9 for test in tests[:2]}}
    assert outputs_section.check(tests, outputs).alarms == (
        "x0-en: 9 of 9 outputs are empty (100 %; references 0 %); the same fault in x1-en.",
    )
    outputs = {"": {}, "baseline": {(test.source, "en"): [""] * 9 for test in tests}}
    (alarm,) = outputs_section.check(tests, outputs).alarms
    assert alarm.endswith("x3-en (baseline), x4-en (baseline), x5-en (baseline) and 3 more.")


def test_the_section_has_counts_and_three_examples():
    sources = [f"le <b> {chr(97 + n)}" for n in range(9)]
    test = translations.TestSet("fr", "fr", "en", 9, sources, [f"the {s}" for s in sources])
    outputs = {"": {("fr", "en"): [""] * 9}, "baseline": {}}
    section = outputs_section.check([test], outputs)
    (row,) = section.data
    empty = row["faults"]["empty"]
    assert (empty["count"], empty["possible"], empty["share"]) == (9, 9, 1)
    assert [example["line"] for example in empty["examples"]] == [1, 2, 3]
    assert section.alarms == ("fr-en: 9 of 9 outputs are empty (100 %; references 0 %).",)
    assert "le &lt;b&gt; a" in section.html
    assert "<b> a" not in section.html
    assert json.loads(json.dumps(section.data)) == section.data
