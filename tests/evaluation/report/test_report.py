"""The files of a report have the promised contents, and the page needs no other file."""

import base64
import dataclasses
import json

import numpy as np
import pytest

from gshard_nmt.evaluation.report import figure, page, report
from gshard_nmt.evaluation.report.report import LanguageResult, Sample


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


@pytest.mark.parametrize("baselines", [True, False])
def test_the_page_has_the_figure_in_light_and_dark_colors(baselines):
    whole = random_report(12, baselines)
    content = report._page_content(whole)
    assert content.shows_gains == baselines
    systems = whole.compared_systems()
    for is_dark in (False, True):
        drawn = base64.b64encode(figure.trend(systems, whole.title, "svg", is_dark)).decode()
        assert drawn in page.render(content)


def test_the_interval_of_a_gain_in_words():
    (result,) = random_report(1).languages
    low, high = result.delta_ci95
    assert report.interval_text(result.delta_ci95) == f"{low:+.1f} to {high:+.1f}"
    assert report.interval_text(None) == ""


def test_the_headline_has_intervals_significance_and_what_the_baselines_are():
    rows = [
        LanguageResult(f"l{i}", 9, 50, bleu, 40.0, 20.0 if i < 3 else None)
        for i, bleu in enumerate((21.0, 22.0, 23.0, 30.0))
    ]
    whole = report.Report(rows, {}, [], "a run", caution="They are starved.")
    # Student's intervals, because the sentences are unknown.
    means = "24.0 BLEU (17.5 to 30.5) on average over 4 languages, +2.0 (-0.5 to +4.5)"
    gains = f"{means} compared with bilingual baselines."
    assert whole.headline() == f"{gains} Better than its baseline in 3 of 3. They are starved."
    section = report.Section("significance", "", "", {}, notes=("2 are better.", "chrF: 3 are."))
    counted = dataclasses.replace(whole, sections=[section])
    assert counted.headline() == f"{gains} 2 are better. They are starved."
    alone = dataclasses.replace(whole, languages=[LanguageResult("fr", 9, 50, 21.0, 40.0)])
    assert (
        dataclasses.replace(alone, caution="").headline() == "21.0 BLEU on average over 1 language."
    )


def test_a_section_is_on_the_page_and_in_the_json_and_its_alarm_comes_first(tmp_path):
    alarm = "fr: 3 of 4 translations are <empty>"
    section = report.Section("copies", "Copies", "<p>none</p>", {"fr": 0}, (alarm,))
    evaluation = dataclasses.replace(random_report(3), sections=(section,))
    report.write(evaluation, tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<h2>Copies</h2>\n<p>none</p>" in page
    assert page.index("3 of 4 translations are &lt;empty&gt;") < page.index("<img")
    assert json.loads((tmp_path / "bleu.json").read_text(encoding="utf-8"))["copies"] == {"fr": 0}
