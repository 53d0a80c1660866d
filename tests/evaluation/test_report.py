"""The files of a report have the promised contents, and the page needs no other file."""

import dataclasses
import json

import numpy as np
import pytest

from gshard_nmt.evaluation import figure, page, report
from gshard_nmt.evaluation.report import LanguageResult, Sample
from gshard_nmt.evaluation.systems import Budget, System


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


def test_the_page_shows_the_trend_of_the_figure():
    results = random_report(25).sorted()
    (line,) = report._page_content(random_report(25)).lines
    places, means = figure.sliding_mean([result.delta_bleu for result in results], 10)
    assert (line.window, list(line.places), list(line.values)) == (10, [*places], [*means])
    assert all(
        low < mean < high for low, mean, high in zip(line.low, means, line.high, strict=True)
    )


def test_the_page_shows_each_system():
    main = random_report(25)
    results = [result.direction_result() for result in main.languages]
    weaker = [dataclasses.replace(r, bleu=r.bleu - 1) for r in results[:-1]]
    systems = [System("experts", results), System("dense", weaker, budget=Budget(experts=0))]
    whole = dataclasses.replace(main, systems=systems)
    first, second = report._page_content(whole).lines
    assert (first.name, first.dashed, second.name, second.dashed) == (
        "experts",
        False,
        "dense",
        True,
    )
    ((name, scores),) = report._page_content(whole).systems
    missing = [result.lang for result in main.sorted()].index(main.languages[-1].lang)
    assert (name, scores.index(None), len(scores)) == ("dense", missing, 25)
    assert "dense: mean of 10 neighbors (dense)" in page.render(report._page_content(whole))


def test_with_few_languages_the_chart_has_the_values_and_no_mean():
    main = random_report(4)
    assert report._page_content(main).lines == []
    results = [result.direction_result() for result in main.languages]
    whole = dataclasses.replace(main, systems=[System("a", results), System("b", results)])
    content = report._page_content(whole)
    assert [(line.name, line.window, len(line.values)) for line in content.lines] == [("b", 1, 4)]
    assert "a: each language" in page.render(content)


def test_a_language_without_baseline_leaves_a_gap():
    whole = random_report(12)
    languages = [
        dataclasses.replace(whole.languages[0], baseline_bleu=None, delta_ci95=None),
        *whole.languages[1:],
    ]
    content = report._page_content(dataclasses.replace(whole, languages=languages))
    assert content.shows_gains
    assert page.render(content).count('class="point"') == 11


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
    assert page.index("3 of 4 translations are &lt;empty&gt;") < page.index("<svg")
    assert json.loads((tmp_path / "bleu.json").read_text(encoding="utf-8"))["copies"] == {"fr": 0}
