import json

from gshard_nmt.data.cleaning import page
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.cleaning.samples import Sample

SMALL = page.Direction(
    "he",
    "en",
    "",
    10,
    {"script": 6, "duplicate pair": 1},
    {"script": [Sample(1, "<b>שלום", "a&b")]},
)
LARGE = page.Direction("de", "en", "back", 1000, {"ratio": 20}, {"ratio": [Sample(2, "x", "y")]})


def test_the_page_and_the_json(tmp_path):
    alarms = page.write_report([SMALL, LARGE], Cleaning(), tmp_path)
    data = json.loads((tmp_path / "cleaning.json").read_text(encoding="utf-8"))
    assert data["pairs"] == 1010
    assert data["remaining"] == 983
    assert data["removed"] == {"ratio": 20, "script": 6, "duplicate pair": 1}
    assert [(d["source"], d["subset"], d["remaining"]) for d in data["directions"]] == [
        ("de", "back", 980),
        ("he", "", 3),
    ]
    assert data["directions"][1]["samples"] == {"script": [{"source": "<b>שלום", "target": "a&b"}]}
    assert data["warnings"] == alarms
    text = (tmp_path / "cleaning.html").read_text(encoding="utf-8")
    assert "27 of 1,010 training pairs were left out (2.67%)" in text
    assert "<td dir='auto'>&lt;b&gt;שלום</td>" in text
    assert "<b>שלום" not in text
    # Each number leads to its samples.
    assert "<a href='#de-en.back-ratio'>20</a>" in text
    assert "<details id='de-en.back-ratio'" in text
    assert "<a href='#he-en-duplicate-pair'>1</a>" in text
    assert "<details id='he-en-duplicate-pair'" in text
    # All filters have words, also those that dropped nothing.
    assert "Drops a pair if a side has no visible character." in text
    assert "http" not in text.split("<style>")[1].split("</style>")[0]


def test_a_filter_that_drops_much_of_a_language_is_a_warning():
    (warning,) = page.warnings([LARGE, SMALL])
    assert warning == (
        "the filter 'script' drops 6 of 10 pairs of he-en (60%), for example '<b>שלום' | 'a&b'. If "
        "these pairs are good, turn the filter off with --gin 'Cleaning.without = [\"script\"]'."
    )


def test_too_many_duplicates_are_a_warning_too():
    direction = page.Direction("de", "en", "", 10, {"duplicate near": 9}, {})
    (warning,) = page.warnings([direction])
    assert "leave its kind out of Cleaning.duplicates" in warning
    assert not list(page.warnings([page.Direction("de", "en", "", 10, {"ratio": 1}, {})]))


def test_no_training_text(tmp_path):
    assert (
        page.write_report([page.Direction("de", "en", "", 0, {}, {})], Cleaning(), tmp_path) == []
    )
    assert "0 of 0 training pairs" in (tmp_path / "cleaning.html").read_text(encoding="utf-8")
