"""The files of a report have the promised contents, and the page needs no other file."""

import dataclasses
import json

import numpy as np
import pytest

from gshard_nmt.evaluation import report
from gshard_nmt.evaluation.report import LanguageResult, Sample


def random_report(number: int, baselines: bool = True) -> report.Report:
    """Returns a report of random scores in random order."""
    rng = np.random.default_rng(0)
    languages = []
    for i in range(number):
        score, base = 30 * rng.random(), 20 * rng.random()
        sample = Sample("<b>a & b</b>", "a & b", "a <i>b", "c" if baselines else None)
        languages.append(
            LanguageResult(
                f"l{i}",
                int(1e5 / (i + 1)),
                50,
                score,
                score + 10,
                base if baselines else None,
                (score - base - 1, score - base + 1) if baselines else None,
                1000,
                1000 if baselines else None,
                (sample,),
            )
        )
    rng.shuffle(languages)
    signatures = {"bleu": "nrefs:1|v", "chrf": "nrefs:1|w"}
    return report.Report(languages, signatures, [("run", "runs/x")], "a run")


def test_bleu_json_has_the_promised_keys(tmp_path):
    report.write(random_report(6), tmp_path)
    contents = json.loads((tmp_path / "bleu.json").read_text())
    assert contents["signature"] == {"bleu": "nrefs:1|v", "chrf": "nrefs:1|w"}
    keys = ["lang", "train_pairs", "sentences", "bleu", "chrf", "baseline_bleu", "delta_bleu"]
    assert all(list(row)[:8] == [*keys, "delta_ci95"] for row in contents["languages"])
    sizes = [row["train_pairs"] for row in contents["languages"]]
    assert sizes == sorted(sizes, reverse=True)
    deltas = [row["delta_bleu"] for row in contents["languages"]]
    assert contents["average"]["delta_bleu"] == pytest.approx(np.mean(deltas), abs=0.02)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bleu.csv",
        "bleu.json",
        "index.html",
        "trendline.png",
        "trendline.svg",
    ]
    assert len((tmp_path / "bleu.csv").read_text().splitlines()) == 7


def test_without_baselines_their_values_are_null(tmp_path):
    report.write(random_report(3, baselines=False), tmp_path)
    contents = json.loads((tmp_path / "bleu.json").read_text())
    for row in contents["languages"]:
        assert row["baseline_bleu"] is row["delta_bleu"] is row["delta_ci95"] is None
    assert contents["average"]["delta_bleu"] is None


def test_the_sliding_mean_uses_whole_windows_only():
    centres, means = report.sliding_mean([3.0] * 100, 10)
    assert len(means) == 91
    np.testing.assert_allclose(means, 3.0)
    centres, means = report.sliding_mean(np.arange(20.0), 10)
    np.testing.assert_allclose(means, centres)


@pytest.mark.parametrize(
    ("baselines", "label"),
    [(True, "gain in BLEU over the bilingual baseline"), (False, "BLEU")],
)
def test_the_chart_shows_gains_if_all_languages_have_a_baseline(baselines, label):
    top, bottom = report._figure(random_report(25, baselines)).axes
    assert top.get_ylabel() == label
    (points,) = [line for line in top.lines if line.get_label() == "each language"]
    results = random_report(25, baselines).sorted()
    values = [result.delta_bleu if baselines else result.bleu for result in results]
    np.testing.assert_allclose(points.get_ydata(), values)
    (trend,) = [line for line in top.lines if line.get_label() == "mean of 10 neighbours"]
    assert len(trend.get_xdata()) == 16
    heights = [bar.get_height() for bar in bottom.patches]
    assert heights == [result.train_pairs for result in results]


def test_the_page_shows_the_trend_of_the_figure():
    results = random_report(25).sorted()
    line = report._page_content(random_report(25)).lines[0]
    places, means = report.sliding_mean([result.delta_bleu for result in results], 10)
    assert (line.window, list(line.places), list(line.values)) == (10, [*places], [*means])


def test_the_interval_of_a_gain_in_words():
    (result,) = random_report(1).languages
    low, high = result.delta_ci95
    assert report.interval_text(result) == f"{low:+.1f} to {high:+.1f}"
    assert report.interval_text(random_report(1, baselines=False).languages[0]) == ""


def test_a_section_is_on_the_page_and_in_the_json_and_its_alarm_comes_first(tmp_path):
    alarm = "fr: 3 of 4 translations are <empty>"
    section = report.Section("copies", "Copies", "<p>none</p>", {"fr": 0}, (alarm,))
    evaluation = dataclasses.replace(random_report(3), sections=(section,))
    report.write(evaluation, tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<h2>Copies</h2>\n<p>none</p>" in page
    assert page.index("3 of 4 translations are &lt;empty&gt;") < page.index("<svg")
    assert json.loads((tmp_path / "bleu.json").read_text(encoding="utf-8"))["copies"] == {"fr": 0}
