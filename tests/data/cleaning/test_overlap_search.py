"""Copies of test sentences that the search finds in the training text."""

import pytest

from gshard_nmt.data.cleaning.overlap import Overlap, OverlapSearch
from gshard_nmt.evaluation import translations

TEST = translations.TestSet(
    "fr",
    "fr",
    "en",
    9,
    ["le petit chat noir dort sur la table", "Ouvrir %s", "rien"],
    ["the little black cat sleeps on the table", "Open %s", "nothing"],
)


def search_for(*rows, languages=("fr", "en"), test=TEST) -> Overlap:
    search = OverlapSearch([test])
    search.add(languages, rows)
    return search.overlaps[0]


def counts(result: Overlap) -> dict[str, int]:
    """Returns the counts that are not zero."""
    of_sides = {
        f"{side}_{name}": result.count(side, name == "exact")
        for side in ("source", "target")
        for name in ("exact", "near")
    }
    both = {"both_sides_exact": len(result.exact_pairs), "both_sides": len(result.pairs)}
    return {name: number for name, number in (of_sides | both).items() if number}


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("tout autre", "all other", {}),
        ("OUVRIR {nom} !", "shut it", {"source_exact": 1}),
        ("ouvrir 3", "open <file>",
         {"source_exact": 1, "target_exact": 1, "both_sides_exact": 1, "both_sides": 1}),
        ("le petit chat noir dort sur la chaise", "other", {"source_near": 1}),
        ("un petit chat noir dort sur une table", "other", {}),
        ("le petit chat noir dort sur la table et il ne mange rien du tout", "other", {}),
        ("le petit chat noir dort sur la chaise", "a little black cat sleeps on the table",
         {"source_near": 1, "target_near": 1, "both_sides": 1}),
        ("%s", "{}", {}),
    ],
)  # fmt: skip
def test_a_training_pair(source, target, expected):
    assert counts(search_for((source, target))) == expected


def test_both_sides_must_be_in_one_training_pair():
    result = search_for(("Ouvrir", "x"), ("y", "Open"))
    assert counts(result) == {"source_exact": 1, "target_exact": 1}


def test_an_exact_copy_is_counted_once_and_wins_over_a_near_copy():
    near = "le petit chat noir dort sur la chaise"
    result = search_for(
        (near, "x"), (TEST.sources[0], "y"), (TEST.sources[0].upper(), "z"), (near, "x")
    )
    assert counts(result) == {"source_exact": 1}


def test_the_training_text_of_another_pair_counts_for_its_own_languages():
    rows = [("Öffnen", "Open"), ("Ouvrir", "x")]
    assert counts(search_for(*rows, languages=("de", "en"))) == {"target_exact": 1}


def test_text_without_spaces_has_near_copies():
    test = translations.TestSet("zh", "zh", "en", 9, ["无法打开这个文件因为它不存在"], ["x"])
    rows = [("无法打开这个文件因为它不存了", "y")]
    assert counts(search_for(*rows, languages=("zh", "en"), test=test)) == {"source_near": 1}
