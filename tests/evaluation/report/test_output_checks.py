"""The checks of single translations."""

import pytest

from gshard_nmt.data.text.language_profiles import LanguageProfiles
from gshard_nmt.evaluation.report import output_checks
from gshard_nmt.evaluation.texts import translations

NO_PROFILES = LanguageProfiles({})


def faults_of(rows, target="en") -> dict[str, list[int]]:
    """Checks rows of (source, reference, output); returns the numbers of the faulty lines by kind."""
    sources, references, outputs = (list(column) for column in zip(*rows, strict=True))
    test = translations.TestSet("fr", "fr", target, 9, sources, references)
    checked = output_checks.check_direction(test, outputs, NO_PROFILES)
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
        (
            "le chat",
            "the cat",
            "the cat sat the cat sat the cat sat the cat sat",
            ["loop"],
        ),
        ("猫", "很好", "好好好好", ["loop"]),
        ("le chat", "the cat", "кошка", ["wrong_script"]),
        ("le chat", "the cat", "猫", ["wrong_script"]),
        ("le chat", "the cat", "the cat µ", []),
        ("ouvrir %s", "open %s", "open", ["placeholders"]),
        ("ouvrir <nom>", "open <name>", "open", []),
        ("voir https://a.org/b.", "see https://a.org/b", "see this place", ["placeholders"]),
        ("les 3 chats", "3 cats", "2 cats", ["numbers"]),
        ("les 3 chats", "three cats", "cats", []),
        ("1 000 chats", "1,000 cats", "1000 cats", []),
        ("un chat", "a cat", "a cat " + "that is much longer " * 3, ["length"]),
    ],
)
def test_one_line(source, reference, output, kinds):
    rows = [("un", "this is the rest of the text", "this is the rest of the text")] * 3
    assert faults_of([*rows, (source, reference, output)]) == {kind: [3] for kind in kinds}


def test_faults_of_baselines_are_one_alarm_after_those_of_the_run_and_none_if_they_are_starved():
    lines = [f"number {n} is here" for n in range(30)]
    checked = []
    for tag, system in (("fr", "baseline"), ("de", "baseline"), ("fr", "")):
        test = translations.TestSet(tag, tag, "en", 9, [f"le {line}" for line in lines], lines)
        bad = ["x x x x x x x x"] * 30
        checked.append(output_checks.check_direction(test, bad, NO_PROFILES, system))
    *of_run, last = output_checks.alarms(checked)
    assert all(alarm.startswith("fr-en: ") for alarm in of_run)
    names = "fr-en (baseline), de-en (baseline)"
    assert last == f"The outputs of {names} have faults, see “Faults in the outputs”."
    assert list(output_checks.alarms(checked, ["fr", "de"])) == of_run


def test_the_same_output_for_different_sources():
    rows = [
        ("un", "one", "x"),
        ("deux", "two", "X!"),
        ("trois", "three", "x"),
        ("un", "one", "one"),
    ]
    assert faults_of(rows) == {"same_output": [0, 1, 2]}
    # If the references are equal, the outputs may be.
    assert faults_of([(source, "one", "x") for source, _, _ in rows]) == {}
    assert faults_of(rows[:2]) == {}


def test_japanese_mixes_its_scripts():
    assert faults_of([("fichier", "ファイルを開く", "開く")] * 2, "ja") == {}


def test_an_alarm_needs_a_share_that_is_surely_above_the_limit():
    kind = output_checks.Kind("empty", "outputs are empty", 0.01)

    def is_alarming(count, possible, usual=0.0):
        return output_checks.Fault(kind, [0] * count, possible, usual).is_alarming

    assert is_alarming(20, 20)
    assert not is_alarming(19, 19)  # too few lines to say anything
    assert is_alarming(30, 1000)
    assert not is_alarming(0, 1000)
    assert not is_alarming(1, 20)
    assert not is_alarming(15, 1000)
    assert not is_alarming(30, 1000, usual=0.02)
