"""The page of a report: one valid file, without requests, in which no text can act as HTML."""

import dataclasses
import html.parser
import re

import pytest

from gshard_nmt.evaluation.report import page

NASTY = "</script><script>alert(1)</script><b>\u2028 & \u202e"
VOID = {"meta", "img", "br", "hr", "input", "link"}


def row(number: int, baseline: float | None = 10.0, bleu: float = 12.0) -> dict:
    delta = None if baseline is None else bleu - baseline
    return {
        "lang": f"l{number}",
        "train_pairs": 100_000 // (number + 1),
        "sentences": 50,
        "bleu": bleu,
        "chrf": 40.0,
        "baseline_bleu": baseline,
        "delta_bleu": delta,
        "delta_ci95": None if delta is None else [delta - 1, delta + 1],
        "tokens": 1000,
        "baseline_tokens": None if baseline is None else 900,
    }


def content(rows, **changes) -> page.Content:
    sample = [
        ("source", "مرحبا بالعالم"),
        ("reference", NASTY),
        ("multilingual", "x" * 5000),
        ("baseline", ""),
    ]
    deltas = [row["delta_bleu"] for row in rows]
    gain = None if None in deltas else sum(deltas) / len(deltas)
    average = {"bleu": 12.0, "delta_bleu": gain, "bleu_ci95": None, "delta_ci95": [-2.34, 5.0]}
    whole = page.Content(
        "a run",
        "12.0 BLEU on average",
        rows,
        average,
        [("run", "runs/x"), ("multilingual model", "9 steps"), ("command", f"gshard-eval {NASTY}")],
        [f"fr: {NASTY}"],
        "<img src='data:,' alt='trend'>",
        [[sample]] * len(rows),
        None not in deltas,
        [("Copies", "<p>none</p>")],
    )
    return dataclasses.replace(whole, **changes)


class Reader(html.parser.HTMLParser):
    """Reads a page strictly: its tags must match, and its ids must be different."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.texts: dict[str, str] = {}
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), tag
        if tag not in VOID:
            self.open.append(tag)
        self.tags.append(tag)
        self.attributes.append(dict(attrs))
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action")]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    ids = [attributes["id"] for attributes in reader.attributes if "id" in attributes]
    assert len(set(ids)) == len(ids)
    return reader


@pytest.mark.parametrize("number", [1, 3, 100])
@pytest.mark.parametrize("baseline", [10.0, None])
def test_the_page_is_valid_and_makes_no_request(number, baseline):
    text = page.render(content([row(i, baseline) for i in range(number)]))
    reader = read(text)
    assert all(address.startswith("data:") for address in reader.addresses)
    assert "://" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert not {"fetch(", "XMLHttpRequest", "import("} & set(re.findall(r"[\w.]+\(", text))
    assert len(text.encode()) < 500_000


def test_text_cannot_become_html_or_end_a_script():
    rows = [row(0), row(1)]
    rows[0]["lang"] = NASTY
    text = page.render(content(rows))
    reader = read(text)
    assert reader.tags.count("script") == 1
    assert "b" not in reader.tags[: reader.tags.index("table")]


def test_every_sample_says_that_its_direction_is_found_from_its_text():
    text = page.render(content([row(0)]))
    assert '<td dir="auto">مرحبا بالعالم</td>' in text
    assert "(5,000 characters)" in text
    assert "x" * 601 not in text
    assert text.count("<i class='empty'>") == 1


def test_alarms_come_first_and_parts_are_as_they_are():
    text = page.render(content([row(0)]))
    assert text.index("class='alarm'") < text.index("<img")
    assert "<h2>Copies</h2>\n<p>none</p>" in text
    assert "class='alarm" not in page.render(content([row(0)], alarms=[]))


def test_the_largest_gains_and_losses_are_listed_with_their_intervals():
    rows = [row(i, bleu=float(i)) for i in range(20)]
    text = page.render(content(rows))
    gains, losses = re.findall(r"<section>(.*?)</section>", text, re.DOTALL)
    assert re.findall(r"<th>(l\d+)</th>", gains) == ["l19", "l18", "l17", "l16", "l15"]
    assert re.findall(r"<th>(l\d+)</th>", losses) == ["l0", "l1", "l2", "l3", "l4"]
    assert "+8.0 to +10.0" in gains
    assert "\u221211.0 to \u22129.0" in losses


def test_a_run_without_losses_says_so():
    assert "No language is worse than its baseline." in page.render(content([row(0)]))


def test_a_system_against_itself_is_zero_and_neither_gains_nor_loses():
    rows = [row(i, bleu=10.0) for i in range(3)]
    for each in rows:
        each["delta_ci95"] = [0.0, 0.0]
    page_text = page.render(content(rows))
    assert "No language is better than its baseline." in page_text
    assert "No language is worse than its baseline." in page_text


def test_missing_values_are_empty_for_the_script():
    text = page.render(content([row(0, None)]))
    table = text[text.index("id='languages'") :]
    assert table.count("<td data-value=''>") == 4
    assert "<h2>BLEU by language" in text
    assert "Largest gains" not in text


def test_the_last_row_is_the_average_with_its_interval():
    text = page.render(content([row(0), row(1)]))
    foot = text[text.index("<tfoot>") : text.index("</tfoot>")]
    assert "<td data-value='12.0'>12.0</td>" in foot
    assert "<td>\u22122.3 to +5.0</td>" in foot
    columns = text[text.index("id='languages'") :].partition("</thead>")[0].count("<th ")
    assert foot.count("<td") + foot.count("<th") == columns


def test_commands_and_budgets_have_headlines_of_their_own():
    text = page.render(content([row(0), row(1)]))
    assert "<pre class='command'>gshard-eval &lt;/script&gt;" in text
    budget = text[text.index("<h2>Training budget") : text.index("<h2>What was measured")]
    assert "9 steps" in budget
    assert "2,000 over 2 languages" in budget
    assert "1,800 over 2 languages" in budget


def test_a_language_of_two_directions_is_named_by_both():
    rows = [
        row(0) | {"lang": "fr", "source": "fr", "target": "en"},
        row(1) | {"lang": "fr", "source": "en", "target": "fr"},
        row(2) | {"lang": "de", "source": "de", "target": "en"},
    ]
    assert page.labels(rows) == ["fr-en", "en-fr", "de"]


def test_open_samples_are_spread_over_the_sizes():
    text = page.render(content([row(i) for i in range(101)]))
    opened = re.findall(r"<details open><summary>(l\d+)", text)
    assert opened == ["l0", "l25", "l50", "l75", "l100"]
