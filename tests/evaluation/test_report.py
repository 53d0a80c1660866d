"""The report's files: their contract, and a page that needs nothing from elsewhere."""

import html.parser
import json

import numpy as np
import pytest

from gshard_nmt.evaluation import report
from gshard_nmt.evaluation.report import LanguageResult, Sample


def made(number: int, baselines: bool = True) -> report.Report:
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


def test_bleu_json_is_as_promised(tmp_path):
    report.write(made(6), tmp_path)
    found = json.loads((tmp_path / "bleu.json").read_text())
    assert found["signature"] == {"bleu": "nrefs:1|v", "chrf": "nrefs:1|w"}
    keys = ["lang", "train_pairs", "sentences", "bleu", "chrf", "baseline_bleu", "delta_bleu"]
    assert all(list(row)[:8] == [*keys, "delta_ci95"] for row in found["languages"])
    sizes = [row["train_pairs"] for row in found["languages"]]
    assert sizes == sorted(sizes, reverse=True)
    deltas = [row["delta_bleu"] for row in found["languages"]]
    assert found["average"]["delta_bleu"] == pytest.approx(np.mean(deltas), abs=0.02)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bleu.csv",
        "bleu.json",
        "index.html",
        "trendline.png",
        "trendline.svg",
    ]
    assert len((tmp_path / "bleu.csv").read_text().splitlines()) == 7


def test_without_baselines_what_depends_on_them_is_null(tmp_path):
    report.write(made(3, baselines=False), tmp_path)
    found = json.loads((tmp_path / "bleu.json").read_text())
    for row in found["languages"]:
        assert row["baseline_bleu"] is row["delta_bleu"] is row["delta_ci95"] is None
    assert found["average"]["delta_bleu"] is None


class Page(html.parser.HTMLParser):
    """Counts open tags, and notes what the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_escapes_text_and_needs_nothing_else(tmp_path):
    report.write(made(4), tmp_path)
    text = (tmp_path / "index.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.references
    assert all(one.startswith("data:") for one in page.references)
    assert "{{" not in text
    assert "&lt;b&gt;a &amp; b&lt;/b&gt;" in text


def test_the_trend_is_a_mean_of_whole_windows():
    at, means = report.sliding_mean([3.0] * 100, 10)
    assert len(means) == 91
    np.testing.assert_allclose(means, 3.0)
    at, means = report.sliding_mean(np.arange(20.0), 10)
    np.testing.assert_allclose(means, at)
