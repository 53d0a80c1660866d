"""The script of the page, in a JavaScript engine: its rules, and what it does to a small document."""

import json
from pathlib import Path

import py_mini_racer
import pytest

from gshard_nmt import web_page

STUB = Path(__file__).with_name("page_stub.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def engine():
    with py_mini_racer.MiniRacer() as context:
        context.eval(STUB)
        context.eval(web_page.template("report.js"))
        yield context


def call(engine, function: str, *arguments):
    words = ", ".join(json.dumps(argument) for argument in arguments)
    return json.loads(engine.eval(f"JSON.stringify(report.{function}({words}) ?? null)"))


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1,234,567", "number", 1234567),
        (" -3.5 ", "number", -3.5),
        ("\u22123.5", "number", -3.5),
        ("+0.4", "number", 0.4),
        ("0", "number", 0),
        ("", "number", None),
        ("unknown", "number", None),
        ("Zh-CN", "text", "zh-cn"),
        ("  ", "text", None),
    ],
)
def test_the_value_of_a_cell(engine, text, kind, value):
    assert call(engine, "cellValue", text, kind) == value


@pytest.mark.parametrize(
    ("values", "descending", "places"),
    [
        ([2, 10, 1], False, [2, 0, 1]),
        ([2, 10, 1], True, [1, 0, 2]),
        ([1, 2, 1, 2, 1], False, [0, 2, 4, 1, 3]),
        ([1, 2, 1, 2, 1], True, [1, 3, 0, 2, 4]),
        ([None, 3, None, -1, 0], False, [3, 4, 1, 0, 2]),
        ([None, 3, None, -1, 0], True, [1, 4, 3, 0, 2]),
        (["b", "a", None, "b"], True, [0, 3, 1, 2]),
        ([], True, []),
    ],
)
def test_rows_are_sorted_with_ties_in_order_and_missing_values_last(
    engine, values, descending, places
):
    assert call(engine, "sortedPlaces", values, descending) == places


def test_a_long_column_is_sorted_as_python_sorts_it(engine):
    values = [(i * 7919) % 37 for i in range(500)]
    expected = sorted(range(500), key=lambda i: (-values[i], i))
    assert call(engine, "sortedPlaces", values, True) == expected


def test_clicks_on_a_column_sort_the_table(engine):
    rows = [["fr", "2"], ["de", "10"], ["nn", ""], ["br", "2"]]
    engine.eval(
        f"page = tableDocument(['text', 'number'], {json.dumps(rows)});"
        "report.start(new Stub('window'), page);"
        "click = (column) => page.querySelectorAll('th')[column].querySelector('button').fire('click');"
        "state = () => JSON.stringify([page.querySelectorAll('tbody tr').map("
        "  (row) => row.children[0].textContent).join(' '),"
        "  page.querySelectorAll('th').map((head) => head.getAttribute('aria-sort'))]);"
    )
    steps = [
        (1, "de fr br nn", [None, "descending"]),
        (1, "fr br de nn", [None, "ascending"]),
        (0, "br de fr nn", ["ascending", None]),
        (0, "nn fr de br", ["descending", None]),
        (1, "de fr br nn", [None, "descending"]),
    ]
    for column, order, sorts in steps:
        engine.eval(f"click({column})")
        assert json.loads(engine.eval("state()")) == [order, sorts]
    heads = "page.querySelectorAll('th').map((head) => head.textContent).join()"
    assert engine.eval(heads) == "column 0,column 1"
    assert engine.eval("page.querySelectorAll('th button')[0].type") == "button"


def test_printing_opens_all_samples_and_closes_them_again(engine):
    engine.eval(
        "page = tableDocument(['text'], [['fr']]); frame = new Stub('window');"
        "report.start(frame, page); samples = page.querySelector('details');"
    )
    engine.eval("frame.fire('beforeprint')")
    assert engine.eval("samples.open") is True
    engine.eval("frame.fire('afterprint')")
    assert engine.eval("samples.open") is False
