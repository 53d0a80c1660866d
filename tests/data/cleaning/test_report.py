import json
import random

from gshard_nmt.data.cleaning import report
from gshard_nmt.data.cleaning.report import Direction, Sample

SMALL = Direction(
    "he",
    "en",
    "",
    10,
    {"script": 6, "duplicate pair": 1},
    {"script": [Sample(1, "<b>שלום", "a&b")]},
)
LARGE = Direction("de", "en", "back", 1000, {"ratio": 20}, {"ratio": [Sample(2, "x", "y")]})


def test_the_counts_samples_and_warnings_of_all_pairs(tmp_path):
    alarms = report.write_report([SMALL, LARGE], tmp_path)
    data = json.loads((tmp_path / report.JSON).read_text(encoding="utf-8"))
    assert (data["pairs"], data["remaining"]) == (1010, 983)
    assert data["removed"] == {"ratio": 20, "script": 6, "duplicate pair": 1}
    assert [(d["source"], d["subset"], d["remaining"]) for d in data["directions"]] == [
        ("de", "back", 980),
        ("he", "", 3),
    ]
    assert data["directions"][1]["samples"] == {"script": [{"source": "<b>שלום", "target": "a&b"}]}
    assert data["warnings"] == alarms
    assert report.write_report([Direction("de", "en", "", 0, {}, {})], tmp_path) == []


def test_a_filter_that_drops_much_of_a_language_is_a_warning():
    (warning,) = report.warnings([LARGE, SMALL])
    assert warning == (
        "the filter 'script' drops 6 of 10 pairs of he-en (60%), for example '<b>שלום' | 'a&b'. If "
        "these pairs are good, turn the filter off with --gin 'Cleaning.without = [\"script\"]'."
    )
    (warning,) = report.warnings([Direction("de", "en", "", 10, {"duplicate near": 9}, {})])
    assert "leave its kind out of Cleaning.duplicates" in warning
    assert not list(report.warnings([Direction("de", "en", "", 10, {"ratio": 1}, {})]))


ROWS = [(f"Zeile {n}", f"line {n}", None) for n in range(100)]


def test_any_split_gives_the_same_samples():
    whole = {"ratio": report.choose("ratio", ROWS)}
    assert len(whole["ratio"]) == report.SAMPLES
    rows = ROWS.copy()
    random.Random(1).shuffle(rows)
    parts = [{"ratio": report.choose("ratio", rows[i : i + 7])} for i in range(0, 100, 7)]
    assert report.merge(parts) == whole
    halves = [report.merge(parts[:5]), report.merge(parts[5:])]
    assert report.merge(json.loads(json.dumps(halves))) == whole
