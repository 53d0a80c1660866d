"""Faults are seeded into an evaluation one at a time. Each is reported; clean evaluations raise none."""

import random
import re

import pytest

from gshard_nmt.data.text.language_profiles import LanguageProfiles
from gshard_nmt.evaluation import translations
from gshard_nmt.evaluation.report import faults
from gshard_nmt.evaluation.systems import System, Systems
from tests.evaluation.small_evaluation import LANGUAGES, LINES, SmallEvaluation, small_evaluation


@pytest.mark.parametrize("seed", range(8))
def test_a_clean_evaluation_raises_no_alarm(seed):
    assert small_evaluation(seed).alarms() == []


def sides(rows):
    return [list(side) for side in zip(*rows, strict=True)]


def empty_references(world: SmallEvaluation, tag: str, rng) -> None:
    n = rng.randrange(LINES)
    world.test[tag][n] = (world.test[tag][n][0], "")


def outputs_of(share: float, change):
    """Makes a fault that changes a share of the outputs."""

    def fault(world: SmallEvaluation, tag: str, rng) -> None:
        for n in rng.sample(range(LINES), int(share * LINES)):
            world.outputs[tag][n] = change(world, tag, n)

    return fault


def first_word_again(world: SmallEvaluation, tag: str, n: int) -> str:
    words = world.outputs[tag][n].split()
    return " ".join([*words, *words[:2] * 5])


def other_baseline_output(world: SmallEvaluation, tag: str, rng) -> None:
    world.baseline_outputs[tag] = [row[0] for row in world.test[tag]]


FAULTS = {
    "empty references": (empty_references, "{tag}-en: 1 references are empty"),
    "empty outputs": (outputs_of(0.2, lambda *_: " "), "{tag}-en: 12 of 60 outputs are empty"),
    "copies": (outputs_of(0.3, lambda world, tag, n: world.test[tag][n][0].upper()),
               "{tag}-en: 18 of 60 outputs are copies of their source"),
    "loops": (outputs_of(0.2, first_word_again), "{tag}-en: 12 of 60 outputs repeat words in a loop"),
    "wrong script": (outputs_of(0.2, lambda *_: "это не тот язык"),
                     "{tag}-en: 12 of 60 outputs look like another"),
    "outputs of another language": (
        outputs_of(0.5, lambda world, tag, n: world.test["fr" if tag == "de" else "de"][n][0]),
        "{tag}-en: .* outputs look like another language"),
    "baseline copies": (other_baseline_output, "{tag}-en \\(baseline\\): 60 of 60 outputs are copies"),
    "missing baseline": (lambda world, tag, rng: world.baselines.remove(tag),
                         "There is no baseline of {tag}"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported(name):
    fault, pattern = FAULTS[name]
    rng = random.Random(name)
    tag = rng.choice(LANGUAGES)
    world = small_evaluation(rng.randrange(1000))
    fault(world, tag, rng)
    alarms = world.alarms()
    assert any(re.search(pattern.replace("{tag}", tag), alarm) for alarm in alarms), alarms


def faults_of(rows, target="en") -> dict[str, list[int]]:
    """Checks rows of (source, reference, output); returns the numbers of the faulty lines by kind."""
    sources, references, outputs = sides(rows)
    test = translations.TestSet("fr", "fr", target, 9, sources, references)
    checked = faults.check_direction(test, outputs, LanguageProfiles({}))
    return {fault.kind.name: fault.lines for fault in checked.faults if fault.lines}


@pytest.mark.parametrize(
    ("source", "reference", "output", "kinds"),
    [
        ("le chat noir", "the black cat", "a black cat", []),
        ("le chat noir", "the black cat", " ", ["empty"]),
        ("le chat noir", "", "", []),
        ("Le chat noir", "the black cat", "le chat  noir", ["copy"]),
        ("OK", "OK", "OK", []),
        ("12", "12", "12", []),
        ("la la", "so so", "so so so so so", ["loop"]),
        ("ha ha ha ha ha", "ha ha ha ha ha", "ha ha ha ha ha", []),
        ("le chat", "the cat", "the cat sat the cat sat the cat sat the cat sat", ["loop"]),
        ("猫", "很好", "好好好好", ["loop"]),
        ("le chat", "the cat", "кошка", ["wrong_language"]),
        ("le chat", "the cat", "猫", ["wrong_language"]),
        ("le chat", "the cat", "the cat µ", []),
    ],
)
def test_one_line(source, reference, output, kinds):
    rows = [("un", "this is the rest of the text", "this is the rest of the text")] * 3
    assert faults_of([*rows, (source, reference, output)]) == {kind: [3] for kind in kinds}


def test_japanese_mixes_its_scripts():
    assert faults_of([("fichier", "ファイルを開く", "開く")] * 2, "ja") == {}


def test_an_alarm_needs_a_share_that_is_surely_above_the_limit():
    def is_alarming(count, possible, usual=0.0):
        return faults.Fault(faults.KINDS[0], [0] * count, possible, usual).is_alarming

    assert is_alarming(20, 20)
    assert not is_alarming(19, 19)  # too few lines to say anything
    assert is_alarming(30, 1000)
    assert not is_alarming(0, 1000)
    assert not is_alarming(1, 20)
    assert not is_alarming(15, 1000)
    assert not is_alarming(30, 1000, usual=0.02)


def section_of(number: int, output: str, name: str = "run", not_converged=()):
    """Returns the section if the "run", its "baseline", or "another" run has only this output."""
    tests = [
        translations.TestSet(f"x{n}", f"x{n}", "en", 9, ["un <b> chat"] * 20, ["a cat"] * 20)
        for n in range(number)
    ]
    lines = {(test.source, "en"): [output] * 20 for test in tests}
    run = System("run", tests, lines=lines if name == "run" else {})
    baselines = (System("x0", tests, lines=lines),) if name == "baseline" else ()
    others = [System("baseline", tests, lines=lines)] if name == "another" else []
    return faults.outputs_section(Systems(run, others, baselines), not_converged)


def test_an_alarm_names_all_directions_with_the_same_fault():
    assert section_of(2, "").alarms[0] == (
        "x0-en: 20 of 20 outputs are empty (100 %; references 0 %); the same fault in x1-en."
    )
    (alarm,) = section_of(9, "", "baseline").alarms
    assert alarm.endswith("x4-en (baseline), x5-en (baseline) and 3 more.")


def test_faults_of_baselines_that_are_not_converged_are_no_news():
    (alarm,) = section_of(2, "", "baseline", ["x0"]).alarms
    assert alarm.startswith("x1-en (baseline): 20 of 20 outputs are empty")
    assert section_of(1, "", "baseline", ["x0"]).alarms == ()
    (alarm,) = section_of(2, "", "another", ["x0"]).alarms
    assert alarm.startswith("x0-en (baseline): 20 of 20 outputs are empty")


def test_the_page_has_examples_as_text_and_the_length_ratio():
    section = section_of(1, "")
    assert "un &lt;b&gt; chat" in section.html
    assert section.html.count("line ") == 3
    (row,) = section.data
    assert (row["length_ratio"], row["faults"]["empty"]["count"]) == (0, 20)
