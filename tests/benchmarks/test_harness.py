"""What all benchmarks share: workers take turns, the page keeps its other sections, and records."""

import dataclasses
import json
import pathlib
import re
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def worker(load, tmp_path):
    """Returns a function that starts a worker with a program of its own."""
    turns = load("harness.turns")

    def start(program):
        program = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); {program}"
        return turns.Worker([sys.executable, "-c", program], {}, tmp_path / "logs" / "log")

    return start


def test_a_worker_answers_each_turn(worker):
    with worker(
        "import os; from harness.turns import take_turns; "
        "take_turns(lambda: os.system('echo noise'), lambda: {'versions': {'library': '1.0'}})"
    ) as process:
        assert process.facts() == {"versions": {"library": "1.0"}}
        for _ in range(2):
            process.ask()
            assert 0 <= process.turn().seconds < 60


def test_a_worker_that_cannot_start_is_reported_with_the_end_of_its_log(worker):
    with (
        worker("sys.exit('no such library')") as process,
        pytest.raises(RuntimeError, match="no such library"),
    ):
        process.facts()


class Scripted:
    """A worker whose turns have given seconds. It notes them in `log`."""

    def __init__(self, load, name, seconds, log, error=""):
        self.name, self.log, self.error = name, log, error
        self.turns = iter([load("harness.turns").Turn(s, 2 * s) for s in seconds])

    def facts(self, seconds):
        assert seconds is None
        if self.error:
            raise RuntimeError(self.error)
        return {"versions": {"library": self.name}}

    def ask(self):
        self.log.append(self.name)

    def turn(self):
        return next(self.turns)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.log.append(f"{self.name} ends")


@pytest.fixture
def measured(load, monkeypatch, capsys):
    """Measures two systems and one that cannot start; returns the result, the turns and stderr."""
    rounds = load("harness.rounds")
    monkeypatch.setattr(rounds, "PAUSE", 0)
    log = []
    systems = {
        "slow": lambda: [Scripted(load, "slow", (4.0, 6.0, 8.0), log)],
        "broken": lambda: [Scripted(load, "broken", (), log, "no such library")],
        "pair": lambda: [
            Scripted(load, "pair", (1.0, 2.0, 1.0), log),
            Scripted(load, "second", (2.0, 1.0, 1.0), log),
        ],
    }
    return rounds.measure(systems, rounds.Limit(3)), log, capsys.readouterr().err


def test_systems_take_turns_in_another_order_in_each_round(measured):
    _, log, _ = measured
    turns = ["slow", "pair", "second", "pair", "second", "slow", "slow", "pair", "second"]
    # A system that cannot start ends before the first turn.
    assert log[:10] == ["broken ends", *turns]
    assert set(log[10:]) == {"slow ends", "pair ends", "second ends"}


def test_ratios_are_those_of_each_round_and_the_slowest_worker_counts(measured):
    result, _, errors = measured
    assert result.rounds == 3
    assert result.seconds("pair") == [2.0, 2.0, 1.0]
    assert result.times_as_fast("pair", "slow") == [2.0, 3.0, 8.0]
    assert [turn.cpu_seconds for turn in result.turns["pair"]] == [3.0, 3.0, 2.0]
    assert "broken is left out. no such library" in errors
    assert set(result.facts) == {"slow", "pair"}


def test_a_benchmark_ends_after_its_time_but_not_before_five_rounds(load):
    rounds = load("harness.rounds")
    over = rounds.Limit(9, seconds=0.0, began=0.0)
    assert [over.is_over(n) for n in (0, 4, 5)] == [False, False, True]
    assert [rounds.Limit(2).is_over(n) for n in (1, 2)] == [False, True]
    half = rounds.Limit(9, seconds=60.0, began=0.0).part(0.5)
    assert (half.rounds, half.seconds) == (9, 30.0)
    assert half.began > 0.0
    assert half.start_seconds() == 180.0
    assert rounds.Limit(9, seconds=900.0).start_seconds() == 300.0


def test_a_section_of_the_page_is_replaced_and_the_rest_stays(load):
    page = load("harness.page")
    text = page.PAGE.read_text(encoding="utf-8")
    sections = re.findall("<!-- begin (.*) -->", text)
    assert sections
    for section in sections:
        once = page.replace(text, section, "| new |\n")
        assert page.replace(once, section, "| new |") == once
        start, end = f"<!-- begin {section} -->\n", f"<!-- end {section} -->\n"
        assert once.split(start)[1].split(end)[0] == "\n| new |\n\n"
        assert once.split(start)[0] == text.split(start)[0]
        assert once.split(end)[1] == text.split(end)[1]
    with pytest.raises(ValueError, match="must have one <!-- begin speed -->"):
        page.replace(text, "speed", "")


@pytest.fixture
def publish(load, tmp_path, monkeypatch, capsys):
    """Publishes a section on a page of its own; returns the page, the records and stdout."""
    page, records = load("harness.page"), load("harness.records")
    monkeypatch.setattr(page, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(sys, "argv", ["/anywhere/speed.py", "--rounds", "5"])
    page.PAGE.write_text("Text.\n\n<!-- begin speed -->\n<!-- end speed -->\n", encoding="utf-8")
    old = [{"part": "speed", "name": "old"}, {"part": "other", "name": "stays"}]
    records.RESULTS.write_text(json.dumps(old), encoding="utf-8")
    figure = records.Figure.of("fast", "s", [2.0, 1.0, 4.0], "slow", [0.5, 0.25, 0.75])
    section = page.Section("speed", "| new |\n", [figure], 5)

    def run(when="auto", busy="", **changes):
        page.publish(dataclasses.replace(section, **changes), when, busy)
        texts = page.PAGE.read_text("utf-8"), records.RESULTS.read_text("utf-8")
        return texts[0], json.loads(texts[1]), capsys.readouterr().out

    return run


def test_a_section_is_written_with_its_records(publish):
    page, records, out = publish()
    assert "| new |\n\n`benchmarks/speed.py --rounds 5`, 20" in page
    assert out.strip() in page
    assert [record["name"] for record in records] == ["stays", "fast"]
    record = records[1]
    assert (record["median"], record["interval"]) == (2.0, [1.0, 4.0])
    assert (record["base"], record["ratio"], record["ratio_interval"]) == (
        "slow",
        0.5,
        [0.25, 0.75],
    )
    assert {"jaxlib", "tensorflow", "python"} <= set(record["versions"])
    assert {"command", "machine", "busy", "date", "commit", "unit", "part"} <= set(record)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"busy": "The machine was busy"}, "the machine was busy"),
        ({"rounds": 2}, "there were fewer than 3 rounds"),
        ({"is_whole": False}, "it does not measure exactly what the page shows"),
        ({"when": "never"}, "of --page never"),
    ],
)
def test_a_section_that_cannot_be_compared_is_only_printed(publish, changes, reason):
    page, records, out = publish(**changes)
    assert page == "Text.\n\n<!-- begin speed -->\n<!-- end speed -->\n"
    assert [record["name"] for record in records] == ["old", "stays"]
    assert out.endswith(f"docs/performance.md is unchanged, because {reason}.\n")
    assert "| new |" in publish(**changes | {"when": "always"})[0]


def test_the_parts_of_make_bench_fit_its_time_and_know_their_flags(load):
    bench = load("bench")
    assert sum(part.minutes for part in bench.PARTS.values()) <= 25
    assert bench.PARTS["first-line"].command("never")[1:] == [
        str(FOLDER / "decoding.py"),
        *("--first", "--minutes", "0.5", "--page", "never"),
    ]
    for part in bench.PARTS.values():
        program = FOLDER / part.arguments[0]
        assert ("limit_of(" in program.read_text("utf-8")) == part.has_limit
        assert "page.publish(" in program.read_text("utf-8")
