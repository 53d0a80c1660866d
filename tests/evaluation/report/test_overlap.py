"""Test sentences in the training text."""

import dataclasses

import pytest

from gshard_nmt.data.cleaning.overlap import Overlap, OverlapSearch
from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import overlap
from gshard_nmt.evaluation.report.report import Training
from gshard_nmt.evaluation.systems.systems import System, Systems
from gshard_nmt.evaluation.texts import translations
from tests.evaluation.made_systems import evaluation_of

TEST = translations.TestSet(
    "fr",
    "fr",
    "en",
    9,
    ["le petit chat noir dort sur la table", "Ouvrir %s", "rien"],
    ["the little black cat sleeps on the table", "Open %s", "nothing"],
)


def search_for(*rows, languages=("fr", "en"), tests=(TEST,)):
    search = OverlapSearch(tests)
    search.add(languages, rows)
    return search.overlaps[0]


def section_of(result: Overlap, pairs: int = 1):
    training = Training(pairs=pairs, overlaps=[result])
    return overlap.overlap_section(evaluation_of(System("a"), training=training))


def counts(result: Overlap) -> dict[str, int]:
    """Returns the counts of the section that are not zero."""
    (row,) = section_of(result).data["directions"]
    names = ("source_exact", "source_near", "target_exact", "target_near")
    names += ("both_sides_exact", "both_sides")
    return {name: row[name] for name in names if row[name]}


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("tout autre", "all other", {}),
        ("OUVRIR {nom} !", "shut it", {"source_exact": 1}),
        (
            "ouvrir 3",
            "open <file>",
            {"source_exact": 1, "target_exact": 1, "both_sides_exact": 1, "both_sides": 1},
        ),
        ("le petit chat noir dort sur la chaise", "other", {"source_near": 1}),
        ("un petit chat noir dort sur une table", "other", {}),
        ("le petit chat noir dort sur la table et il ne mange rien du tout", "other", {}),
        (
            "le petit chat noir dort sur la chaise",
            "a little black cat sleeps on the table",
            {"source_near": 1, "target_near": 1, "both_sides": 1},
        ),
        ("%s", "{}", {}),
    ],
)
def test_a_training_pair(source, target, expected):
    assert counts(search_for((source, target))) == expected


def test_both_sides_must_be_in_one_training_pair():
    result = search_for(("Ouvrir", "x"), ("y", "Open"))
    assert counts(result) == {"source_exact": 1, "target_exact": 1}


def test_an_exact_copy_of_any_reference_counts():
    several = dataclasses.replace(TEST, other_references=(["x", "Please open %s", "z"],))
    result = search_for(("ouvrir 3", "please open 7"), tests=(several,))
    assert counts(result)["both_sides_exact"] == 1


def test_an_exact_copy_is_counted_once_and_wins_over_a_near_copy():
    near = "le petit chat noir dort sur la chaise"
    result = search_for(
        (near, "x"), (TEST.sources[0], "y"), (TEST.sources[0].upper(), "z"), (near, "x")
    )
    assert counts(result) == {"source_exact": 1}
    assert result.matches["source"][0].training == TEST.sources[0]


def test_the_training_text_of_another_pair_counts_for_its_own_languages():
    rows = [("Öffnen", "Open"), ("Ouvrir", "x")]
    assert counts(search_for(*rows, languages=("de", "en"))) == {"target_exact": 1}


def test_text_without_spaces_has_near_copies():
    test = translations.TestSet("zh", "zh", "en", 9, ["无法打开这个文件因为它不存在"], ["x"])
    rows = [("无法打开这个文件因为它不存了", "y")]
    assert counts(search_for(*rows, languages=("zh", "en"), tests=[test])) == {"source_near": 1}


def test_lines_that_overlap_are_left_out_of_every_system():
    training = Training(overlaps=[search_for(("Ouvrir", "x"))])
    system = System("a", [TEST], lines={("fr", "en"): ["one", "two", "three"]})
    systems = overlap.leave_out(Systems(system, [system], [System("fr", [TEST])]), training)
    for each in (systems.main, *systems.others, *systems.baselines):
        (test,) = each.tests
        assert test.sources == [TEST.sources[0], TEST.sources[2]]
        assert test.references == [TEST.references[0], TEST.references[2]]
    assert systems.others[0].lines == {("fr", "en"): ["one", "three"]}
    everything = search_for(*zip(TEST.sources, TEST.references, strict=True))
    with pytest.raises(UserError, match="leaves out all test sentences"):
        overlap.leave_out(Systems(system), Training(overlaps=[everything]))


def test_a_corpus_without_training_text_is_said_so():
    section = section_of(search_for(), 0)
    assert "the corpus has no training text" in section.html.lower()
    assert section.alarms == ()
