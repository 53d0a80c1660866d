"""The files and the page of a report: promised contents, no requests, no text that acts as HTML."""

import dataclasses
import html.parser
import json
import re

import numpy as np
import pytest

from gshard_nmt.evaluation.metrics import Measured
from gshard_nmt.evaluation.report import page, report, terminal
from gshard_nmt.evaluation.report.report import Report, Section
from gshard_nmt.evaluation.significance import Comparison
from gshard_nmt.evaluation.systems import Result, System, Systems
from tests.evaluation.made_systems import made_test, result_of, system_of

NASTY = "</script><script>alert(1)</script><b>\u2028 & \u202e"
VOID = {"meta", "img", "br", "hr", "input", "link", "source"}
SCORES = {"bleu": Measured(12.0, "nrefs:1|v"), "chrf": Measured(40.0, "nrefs:1|w")}


def result(number: int, gain: float | None = 2.0, **changes) -> Result:
    """Returns a result with translations, of 10 BLEU more than the baseline's gain."""
    test = dataclasses.replace(
        made_test(f"l{number}", 100_000 // (number + 1)),
        sources=["مرحبا بالعالم"],
        references=[NASTY],
    )
    made = result_of(number, 10.0 + (gain or 0.0), None if gain is None else 10.0, test=test)
    baseline = gain is not None and Result(test, 10.0, lines=[""], tokens=900)
    return dataclasses.replace(
        made, **{"lines": ["x" * 5000], "scores": SCORES, "tokens": 1000} | changes,
        baseline=baseline or None,
    )  # fmt: skip


def report_of(results, **fields) -> Report:
    facts = [
        ("run", "runs/x"),
        ("multilingual model", "9 steps"),
        ("command", f"gshard-eval {NASTY}"),
    ]
    systems = Systems(System("a", results=results))
    return Report(systems, **{"title": "a run", "facts": facts} | fields)


class Reader(html.parser.HTMLParser):
    """Reads a page strictly: its tags must match, and its ids must be different."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), tag
        if tag not in VOID:
            self.open.append(tag)
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    return reader


def test_bleu_json_has_the_promised_keys(tmp_path):
    page.write(report_of([result(n, float(n)) for n in (3, 1, 5, 0, 2, 4)]), tmp_path)
    contents = json.loads((tmp_path / "bleu.json").read_text())
    assert contents["signature"] == {"bleu": "nrefs:1|v", "chrf": "nrefs:1|w"}
    keys = ["lang", "train_pairs", "sentences", "bleu", "chrf", "baseline_bleu", "delta_bleu"]
    assert all(list(row)[:8] == [*keys, "delta_ci95"] for row in contents["languages"])
    assert {"source", "target"} <= set(contents["languages"][0])
    assert [row["lang"] for row in contents["languages"]] == [f"l{n}" for n in range(6)]
    assert contents["average"]["delta_bleu"] == 2.5
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(report.FILES)
    assert len((tmp_path / "bleu.csv").read_text().splitlines()) == 7
    assert report.is_in(tmp_path)
    without = report_of([result(0, None)]).as_json()
    (row,) = without["languages"]
    assert row["baseline_bleu"] is row["delta_bleu"] is row["delta_ci95"] is None
    assert without["average"]["delta_bleu"] is None


def test_the_headline_has_intervals_significance_and_what_the_baselines_are():
    values = (21.0, 22.0, 23.0, 30.0)
    rows = [result_of(n, bleu, 20.0 if n < 3 else None) for n, bleu in enumerate(values)]
    whole = report_of(rows, caution="They are starved.")
    # Student's intervals, because the sentences are unknown.
    means = "24.0 BLEU (17.5 to 30.5) on average over 4 languages, +2.0 (-0.5 to +4.5)"
    gains = f"{means} compared with bilingual baselines."
    assert whole.headline == f"{gains} Better than its baseline in 3 of 3. They are starved."
    section = Section("significance", "", "", {}, notes=("2 are better.", "chrF: 3 are."))
    counted = dataclasses.replace(whole, sections=[section])
    assert counted.headline == f"{gains} 2 are better. They are starved."
    assert report_of(rows[3:]).headline == "30.0 BLEU on average over 1 language."
    both_ways = [result_of(3, bleu, None) for bleu in (30.0, 20.0)]
    assert report_of(both_ways).headline.endswith("on average over 2 directions.")


@pytest.mark.parametrize(("number", "gain"), [(3, None), (100, 2.0)])
def test_the_page_is_valid_and_makes_no_request(number, gain):
    text = page.render(report_of([result(n, gain) for n in range(number)]))
    assert all(address.startswith("data:") for address in read(text).addresses)
    assert not {"://", "url(", "@import"} & set(re.findall(r"://|url\(|@import", text))
    assert not {"fetch(", "XMLHttpRequest", "import("} & set(re.findall(r"[\w.]+\(", text))
    assert len(text.encode()) < 600_000


@pytest.mark.usefixtures("no_figures")
def test_text_cannot_become_html_and_alarms_come_first():
    section = Section("copies", "Copies", "<p>none</p>", {"fr": 0}, (f"fr: {NASTY}",))
    nasty = result(0)
    nasty = dataclasses.replace(nasty, test=dataclasses.replace(nasty.test, language=NASTY))
    whole = report_of([nasty, result(1)], sections=[section])
    text = page.render(whole)
    reader = read(text)
    assert "script" not in reader.tags
    assert "b" not in reader.tags[: reader.tags.index("table")]
    assert text.index("class='alarm'") < text.index("<img")
    assert "<h2>Copies</h2>\n<p>none</p>" in text
    assert whole.as_json()["copies"] == {"fr": 0}
    assert "class='alarm" not in page.render(report_of([result(0)]))


@pytest.mark.usefixtures("no_figures")
def test_samples_have_their_direction_and_those_of_a_few_languages_are_open():
    text = page.render(report_of([result(n) for n in range(101)]))
    assert '<td dir="auto">مرحبا بالعالم</td>' in text
    assert "(5,000 characters)" in text
    assert "x" * 601 not in text
    assert text.count("<i class='empty'>") == 101
    assert re.findall(r"<details open><summary>(l\d+)", text) == ["l0", "l25", "l50", "l75", "l100"]


def test_the_choice_of_samples_follows_the_seed_the_direction_and_the_number_of_languages():
    chosen = page.chosen_samples(("fr", "en"), 1000, 16)
    assert chosen == page.chosen_samples(("fr", "en"), 1000, 16) == sorted(set(chosen))
    assert len(chosen) == 3
    choices = {tuple(page.chosen_samples((f"l{i}", "en"), 1000, 20)) for i in range(20)}
    assert len(choices) == 20
    assert 300 < np.mean([position for choice in choices for position in choice]) < 700
    assert len(page.chosen_samples(("fr", "en"), 1000, 100)) == 1
    assert page.chosen_samples(("fr", "en"), 2, 3) == [0, 1]


@pytest.mark.usefixtures("no_figures")
def test_the_largest_gains_and_losses_are_listed_with_their_intervals():
    text = page.render(report_of([result(n, n - 10.0) for n in range(20)]))
    gains, losses = re.findall(r"<section>(.*?)</section>", text, re.DOTALL)
    assert re.findall(r"<th>(l\d+)</th>", gains) == ["l19", "l18", "l17", "l16", "l15"]
    assert re.findall(r"<th>(l\d+)</th>", losses) == ["l0", "l1", "l2", "l3", "l4"]
    assert "+8.0 to +10.0" in gains
    assert "<b class='loss'>\u221210.0</b>" in losses
    alike = page.render(report_of([result(0, 0.0)]))
    assert "No language is better than its baseline." in alike
    assert "No language is worse than its baseline." in alike


@pytest.mark.usefixtures("no_figures")
def test_missing_values_are_empty_and_the_last_row_is_the_average():
    text = page.render(report_of([result(0, None)]))
    assert "<tr><th>l0</th><td>100,000</td><td>1,000</td><td>1</td><td>10.0</td>" in text
    assert "<h2>BLEU by language" in text
    assert "Largest gains" not in text
    text = page.render(report_of([result(n, n - 1.0) for n in range(3)]))
    foot = text[text.index("<tfoot>") : text.index("</tfoot>")]
    assert "<td>10.0</td>" in foot
    assert "<td>\u22122.5 to +2.5</td>" in foot
    table = text[text.index("<th>language</th><th>training pairs") :]
    assert foot.count("<td") + foot.count("<th") == table.partition("</thead>")[0].count("<th>")


def test_the_terminal_shows_scores_systems_alarms_and_signatures(capsys, tmp_path):
    made = result_of(0, 31.25, 21.0, scores=SCORES, gain=Comparison(10, (8, 12), 0.1))
    section = Section("study", "A study", "", None, ("[red] alarm",))
    systems = Systems(System("[b]a", results=[made]), [system_of("b", {0: 30.0})])
    terminal.show(Report(systems, "a run", (), [section]), tmp_path)
    out = capsys.readouterr().out
    numbers = "31.2", "+10.2", "+8.0 to +12.0"
    assert all(
        text in out for text in (*numbers, "[red] alarm", "BLEU nrefs:1|v", "systems", "[b]a")
    )
    assert f"report: {tmp_path / 'index.html'}" in out.replace("\n", "")
    terminal.show(report_of([result_of(0, 31.25, None, scores=SCORES)]), tmp_path)
    assert not {"systems", "baseline"} & set(capsys.readouterr().out.split())
