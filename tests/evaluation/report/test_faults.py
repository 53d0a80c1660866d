"""Faults are seeded into an evaluation one at a time. Each is reported; clean evaluations raise none."""

import json
import random
import re

import numpy as np
import pytest

from gshard_nmt import paths
from gshard_nmt.data.text.language_profiles import LanguageProfiles
from gshard_nmt.evaluate import Options, Request, evaluate
from gshard_nmt.evaluation.report import faults
from gshard_nmt.evaluation.systems.systems import System
from gshard_nmt.evaluation.texts import translations
from gshard_nmt.run.folder import RunFolder
from tests.evaluation.made_systems import evaluation_of
from tests.evaluation.small_evaluation import LANGUAGES, LINES, SmallEvaluation, small_evaluation


@pytest.fixture(autouse=True)
def no_figures(monkeypatch):
    """Leaves out the figures, which take most of the time."""
    monkeypatch.setattr("gshard_nmt.evaluation.report.figures.image", lambda draw, kind: b"")


@pytest.mark.parametrize("seed", range(8))
def test_a_clean_evaluation_raises_no_alarm(tmp_path, seed):
    assert small_evaluation(tmp_path, seed).alarms() == []


def sides(rows):
    return [list(side) for side in zip(*rows, strict=True)]


def leak(world: SmallEvaluation, tag: str, rng) -> None:
    lines = rng.sample(range(LINES), 3)
    world.train[tag][10:10] = [world.test[tag][n] for n in lines]


def leak_nearly(world: SmallEvaluation, tag: str, rng) -> None:
    """Leaks sentences with another case and number, and without their last word."""
    rows = [row for row in world.test[tag] if len(row[0].split()) > 9][:6]
    cut = [tuple(side.rsplit(" ", 1)[0].title() + "!" for side in row) for row in rows]
    world.train[tag][10:10] = cut


def leak_into_another_language(world: SmallEvaluation, tag: str, rng) -> None:
    other = LANGUAGES[LANGUAGES.index(tag) - 1]
    world.train[other] += [(world.train[other][0][0], row[1]) for row in world.test[tag]]
    world.train[tag] += world.test[tag][:1]


def shift_references(world: SmallEvaluation, tag: str, rng) -> None:
    sources, references = sides(world.test[tag])
    step = rng.choice([-2, -1, 1, 2])
    world.test[tag] = list(zip(sources, np.roll(references, step).tolist(), strict=True))


def lose_a_reference(world: SmallEvaluation, tag: str, rng) -> None:
    """Removes a reference in the middle, so that all later ones move up, and adds one at the end."""
    sources, references = sides(world.test[tag])
    del references[rng.randrange(5, 25)]
    world.test[tag] = list(zip(sources, [*references, references[0]], strict=True))


def shift_outputs(world: SmallEvaluation, tag: str, rng) -> None:
    world.outputs[tag] = np.roll(world.outputs[tag], rng.choice([-1, 1])).tolist()


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


def other_language(world: SmallEvaluation, tag: str, n: int) -> str:
    return world.test["fr" if tag == "de" else "de"][n][0]


def other_baseline_output(world: SmallEvaluation, tag: str, rng) -> None:
    world.baseline_outputs[tag] = [row[0] for row in world.test[tag]]


def starve(world: SmallEvaluation, tag: str, rng) -> None:
    world.baseline_tokens[tag] = 100


def train_on_other_text(world: SmallEvaluation, tag: str, rng) -> None:
    world.baseline_pairs[tag] = 3


def lose_a_baseline(world: SmallEvaluation, tag: str, rng) -> None:
    del world.baseline_tokens[tag], world.baseline_outputs[tag]


def kill_experts(world: SmallEvaluation, tag: str, rng) -> None:
    world.log = [{"effective_experts/decoder_1": 3.9}] * 5


# fmt: off
FAULTS = {
    "test in training": (leak, "{tag}-en: 3 of 60 test sources are in the training text, 3 of"),
    "test nearly in training": (leak_nearly, "{tag}-en: [3-6] of 60 test sources are in the"),
    "test in training of another language": (leak_into_another_language, "{tag}-en: 1 of 60 test"),
    "references shifted": (shift_references, "{tag}-en: the references look shifted by"),
    "a reference lost": (lose_a_reference, "{tag}-en: the references look shifted by -1"),
    "outputs shifted": (shift_outputs, "{tag}-en: the references look shifted by .* against the out"),
    "empty references": (empty_references, "{tag}-en: 1 references are empty"),
    "empty outputs": (outputs_of(0.2, lambda *_: " "), "{tag}-en: 12 of 60 outputs are empty"),
    "copies": (outputs_of(0.3, lambda world, tag, n: world.test[tag][n][0].upper()),
               "{tag}-en: 18 of 60 outputs are copies of their source"),
    "loops": (outputs_of(0.2, first_word_again), "{tag}-en: 12 of 60 outputs repeat words in a loop"),
    "same output": (outputs_of(0.3, lambda world, tag, n: world.outputs[tag][0]),
                    "{tag}-en: 1[89] of 60 outputs are given for three or more"),
    "wrong script": (outputs_of(0.2, lambda *_: "это не тот язык"),
                     "{tag}-en: 12 of 60 outputs look like another"),
    "outputs of another language": (outputs_of(0.5, other_language),
                                    "{tag}-en: .* outputs look like another language"),
    "baseline copies": (other_baseline_output, "The outputs of {tag}-en \\(baseline\\) have faults"),
    "short outputs": (outputs_of(0.9, lambda world, tag, n: world.outputs[tag][n][:6]),
                      "{tag}-en: the outputs have 0\\... times the length"),
    "starved baseline": (starve, "Baselines saw less .*: {tag} \\(100 of 1,000\\)\\. Their gains"),
    "baseline of other text": (train_on_other_text,
                               "Baselines were trained on another .*: {tag} \\(3 and 4\\)"),
    "missing baseline": (lose_a_baseline, "There is no baseline of {tag}"),
    "dead experts": (kill_experts, "Layer decoder_1 works as if it had 3.9 experts, and it has 8"),
}
# fmt: on


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported(tmp_path, name):
    fault, pattern = FAULTS[name]
    rng = random.Random(name)
    tag = rng.choice(LANGUAGES)
    world = small_evaluation(tmp_path, seed=rng.randrange(1000))
    fault(world, tag, rng)
    alarms = world.alarms()
    assert any(re.search(pattern.replace("{tag}", tag), alarm) for alarm in alarms), alarms


def report_of(world: SmallEvaluation, **asked):
    words = (world.run.path, world.corpus, "test", world.folder / "report", world.translate)
    evaluate(*words, Request(**asked))
    return json.loads((world.folder / "report" / "bleu.json").read_text())


def test_a_system_is_no_better_than_itself(tmp_path):
    world = small_evaluation(tmp_path, seed=1)
    world.baseline_outputs, world.baseline_tokens = world.outputs, world.tokens
    world.write()
    report = report_of(world, baselines=tmp_path / "baselines")
    for row in report["languages"]:
        assert (row["delta_bleu"], row["delta_ci95"]) == (0, [0, 0])
    assert report["average"]["delta_bleu"] == 0
    assert report["checks"] == []


def test_what_cannot_be_read_is_named_in_a_partial_report(tmp_path):
    world = small_evaluation(tmp_path, seed=2)
    del world.baseline_tokens["ru"]
    world.write()
    (world.corpus / "de-en" / "test.en").write_text("one line\n")
    (world.corpus / "ru-en" / "test.en").write_text("")
    (world.corpus / "ru-en" / "test.ru").write_text("")
    report = report_of(world, baselines=tmp_path / "baselines")
    assert [row["lang"] for row in report["languages"]] == ["fr"]
    unequal, empty = report["checks"]
    assert unequal.startswith("de-en is not scored: the two files of de-en have different lengths")
    assert (
        empty == f"ru-en is not scored: --corpus {world.corpus} has no test text of this direction."
    )
    # Text that cannot be read has no fingerprint.
    text = report["provenance"]["training text"]
    assert text.startswith("unknown: the two files of de-en have different lengths")


def test_stale_translations_are_made_again_and_named(tmp_path):
    world = small_evaluation(tmp_path, seed=3)
    world.write()
    assert "translated again" not in report_of(world)["provenance"]
    folder = world.run.path / "decodes"
    identity = {"checkpoint": "step 3"}
    old = translations.Translations(["old"] * LINES, "step 3")
    translations.store(folder, "test.fr-en", identity, old)
    report = report_of(world)
    assert report["provenance"]["translated again"].startswith("test.fr-en: what was stored is of")
    assert {row["lang"]: row["bleu"] > 20 for row in report["languages"]}["fr"]
    assert "translated again" not in report_of(world)["provenance"]


def test_sentences_that_overlap_can_be_left_out(tmp_path):
    world = small_evaluation(tmp_path, seed=4)
    leak(world, "fr", random.Random(4))
    world.write()
    report = report_of(
        world, options=Options(leave_out_overlap=True), baselines=tmp_path / "baselines"
    )
    counts = {row["lang"]: row["sentences"] for row in report["languages"]}
    assert counts == {"fr": LINES - 3, "de": LINES, "ru": LINES}
    french = next(row for row in report["overlap"]["directions"] if row["source"] == "fr")
    assert (french["left_out"], french["both_sides_exact"]) == (3, 3)
    assert report["overlap"]["left_out"]


NO_PROFILES = LanguageProfiles({})


def faults_of(rows, target="en") -> dict[str, list[int]]:
    """Checks rows of (source, reference, output); returns the numbers of the faulty lines by kind."""
    sources, references, outputs = sides(rows)
    test = translations.TestSet("fr", "fr", target, 9, sources, references)
    checked = faults.check_direction(test, outputs, NO_PROFILES)
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
        ("un chat", "a cat", "a cat " + "that is much longer " * 3, ["length"]),
    ],
)
def test_one_line(source, reference, output, kinds):
    rows = [("un", "this is the rest of the text", "this is the rest of the text")] * 3
    assert faults_of([*rows, (source, reference, output)]) == {kind: [3] for kind in kinds}


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
    def is_alarming(count, possible, usual=0.0):
        return faults.Fault(faults.KINDS[0], [0] * count, possible, usual).is_alarming

    assert is_alarming(20, 20)
    assert not is_alarming(19, 19)  # too few lines to say anything
    assert is_alarming(30, 1000)
    assert not is_alarming(0, 1000)
    assert not is_alarming(1, 20)
    assert not is_alarming(15, 1000)
    assert not is_alarming(30, 1000, usual=0.02)


def section_of(number: int, output: str, name: str = "run"):
    """Returns the section about faults if a number of directions have only this output."""
    tests = [
        translations.TestSet(f"x{n}", f"x{n}", "en", 9, ["un <b> chat"] * 20, ["a cat"] * 20)
        for n in range(number)
    ]
    lines = {(test.source, "en"): [output] * 20 for test in tests}
    run = System("run", tests, lines=lines if name == "run" else {})
    baselines = (System("x0", tests, lines=lines),) if name == "baseline" else ()
    return faults.outputs_section(evaluation_of(run, baselines=baselines))


def test_an_alarm_names_all_directions_with_the_same_fault():
    assert section_of(2, "").alarms[0] == (
        "x0-en: 20 of 20 outputs are empty (100 %; references 0 %); the same fault in x1-en."
    )
    (alarm,) = section_of(9, "", "baseline").alarms
    assert "x3-en (baseline), x4-en (baseline) and 4 more have faults, see “Faults in" in alarm


def test_faults_of_baselines_that_are_not_converged_are_no_news():
    lines = [f"number {n} is here" for n in range(30)]
    checked = []
    for tag, system in (("fr", faults.BASELINE), ("de", faults.BASELINE), ("fr", "")):
        test = translations.TestSet(tag, tag, "en", 9, [f"le {line}" for line in lines], lines)
        bad = ["x x x x x x x x"] * 30
        checked.append(faults.check_direction(test, bad, NO_PROFILES, system))
    *of_run, last = faults.output_alarms(checked)
    assert all(alarm.startswith("fr-en: ") for alarm in of_run)
    assert last.startswith("The outputs of fr-en (baseline), de-en (baseline) have faults")
    assert list(faults.output_alarms(checked, ["fr", "de"])) == of_run


def test_the_log_of_a_run_in_a_bucket_is_read_and_its_damaged_lines_are_left_out(bucket):
    bucket.write("bucket/run/config.gin", b"Model.experts = 8\n")
    rows = b'{"effective_experts/encoder_1": 1.5}\n{"effec\n[1]\n\xff\n{"event": "resumed"}\n'
    bucket.write("bucket/run/metrics.jsonl", rows)
    run = RunFolder(paths.folder_path("workdir", "gs://bucket/run"))
    (alarm,) = faults.idle_experts(run)
    assert alarm.startswith("Layer encoder_1 works as if it had 1.5 experts, and it has 8")
    # Only the last lines count.
    bucket.write("bucket/run/metrics.jsonl", rows + b'{"effective_experts/encoder_1": 7.5}\n' * 3)
    assert list(faults.idle_experts(run)) == []
