"""Faults are seeded into an evaluation one at a time. Each is reported; clean evaluations raise none."""

import json
import random
import re

import numpy as np
import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluate import Options, Request, evaluate
from gshard_nmt.evaluation.texts import translations
from tests.evaluation.small_evaluation import LANGUAGES, LINES, SmallEvaluation, small_evaluation


@pytest.mark.parametrize("seed", range(20))
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


def swap_sides(world: SmallEvaluation, tag: str, rng) -> None:
    world.test[tag] = [(english, source) for source, english in world.test[tag]]


def swap_sides_of_all_splits(world: SmallEvaluation, tag: str, rng) -> None:
    swap_sides(world, tag, rng)
    world.train[tag] = [(english, source) for source, english in world.train[tag]]


def take_references_of_another_language(world: SmallEvaluation, tag: str, rng) -> None:
    other = LANGUAGES[LANGUAGES.index(tag) - 1]
    world.test[tag] = [
        (row[0], other_row[0])
        for row, other_row in zip(world.test[tag], world.test[other], strict=True)
    ]


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


def cut_references(world: SmallEvaluation, tag: str, rng) -> None:
    world.test[tag] = [(source, english[:25]) for source, english in world.test[tag]]


def halve_references(world: SmallEvaluation, tag: str, rng) -> None:
    world.test[tag] = [
        (source, english[: len(english) // 2]) for source, english in world.test[tag]
    ]


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


def without(pattern: str):
    def fault(world: SmallEvaluation, tag: str, rng) -> None:
        world.outputs[tag] = [re.sub(pattern, "", line) for line in world.outputs[tag]]

    return fault


def same_outputs_for_two(world: SmallEvaluation, tag: str, rng) -> None:
    world.outputs[tag] = world.outputs[LANGUAGES[LANGUAGES.index(tag) - 1]]


def starve(world: SmallEvaluation, tag: str, rng) -> None:
    world.baseline_tokens[tag] = 100


def train_on_other_text(world: SmallEvaluation, tag: str, rng) -> None:
    world.baseline_pairs[tag] = 3


def end_too_early(world: SmallEvaluation, tag: str, rng) -> None:
    world.dev_nll[tag] = [3.0, 2.5, 2.0]


def lose_a_baseline(world: SmallEvaluation, tag: str, rng) -> None:
    del world.baseline_tokens[tag], world.baseline_outputs[tag]


def kill_experts(world: SmallEvaluation, tag: str, rng) -> None:
    world.log = [{"effective_experts/decoder_1": 3.9}] * 5


FAULTS = {
    "test in training": (leak, "{tag}-en: 3 of 60 test sources are in the training text, 3 of"),
    "test nearly in training": (leak_nearly, "{tag}-en: [3-6] of 60 test sources are in the"),
    "test in training of another language": (leak_into_another_language, "{tag}-en: 1 of 60 test"),
    "sides swapped": (swap_sides, "{tag}-en: sources and references look swapped"),
    "sides swapped everywhere": (swap_sides_of_all_splits, "{tag}-en: sources and references look"),
    "wrong language": (take_references_of_another_language, "{tag}-en: the references look like"),
    "references shifted": (shift_references, "{tag}-en: the references look shifted by"),
    "a reference lost": (lose_a_reference, "{tag}-en: the references look shifted by -1"),
    "outputs shifted": (shift_outputs, "{tag}-en: the outputs look shifted by"),
    "references cut": (cut_references, "{tag}-en: .* references have exactly 25 characters"),
    "references halved": (halve_references, "{tag}-en: the references have .* times the length"),
    "empty references": (empty_references, "{tag}-en: 1 references are empty"),
    "empty outputs": (outputs_of(0.2, lambda *_: " "), "{tag}-en: 12 of 60 outputs are empty"),
    "copies": (
        outputs_of(0.3, lambda world, tag, n: world.test[tag][n][0].upper()),
        "{tag}-en: 18 of 60 outputs are copies of their source",
    ),
    "loops": (
        outputs_of(0.2, first_word_again),
        "{tag}-en: 12 of 60 outputs repeat words in a loop",
    ),
    "same output": (
        outputs_of(0.3, lambda world, tag, n: world.outputs[tag][0]),
        "{tag}-en: 1[89] of 60 outputs are given for three or more",
    ),
    "wrong script": (
        outputs_of(0.2, lambda *_: "это не тот язык"),
        "{tag}-en: 12 of 60 outputs are in a script",
    ),
    "outputs of another language": (
        outputs_of(0.5, other_language),
        "{tag}-en: .* outputs look like another language",
    ),
    "baseline copies": (
        other_baseline_output,
        "The outputs of {tag}-en \\(baseline\\) have faults",
    ),
    "short outputs": (
        outputs_of(0.9, lambda world, tag, n: world.outputs[tag][n][:6]),
        "{tag}-en: the outputs have 0\\... times the length",
    ),
    "broken placeholders": (
        without("[%<>]"),
        "{tag}-en: .* outputs whose source has a placeholder",
    ),
    "broken numbers": (
        without(r"\d$|\d "),
        "{tag}-en: .* outputs whose source has a number lack it",
    ),
    "same outputs for two languages": (same_outputs_for_two, "and .*-en have the same output in"),
    "starved baseline": (
        starve,
        "Baselines saw less than half .*: {tag} \\(100 of 1,000\\)\\. Their gains",
    ),
    "baseline of other text": (
        train_on_other_text,
        "Baselines were trained on another .*: {tag} \\(3 and 4\\)",
    ),
    "baseline ended too early": (end_too_early, "1 baselines were still improving .*: {tag}"),
    "missing baseline": (lose_a_baseline, "There is no baseline of {tag}"),
    "dead experts": (kill_experts, "Layer decoder_1 works as if it had 3.9 experts, and it has 8"),
}


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


def test_missing_references_are_named(tmp_path):
    world = small_evaluation(tmp_path, seed=2)
    world.write()
    (world.corpus / "de-en" / "test.en").unlink()
    report = report_of(world)
    assert [row["lang"] for row in report["languages"]] == ["fr", "ru"]
    assert "de-en is not scored" in report["checks"][0]
    assert "has test.de but not test.en" in report["checks"][0]
    for tag in ("fr", "ru"):
        (world.corpus / f"{tag}-en" / "test.en").unlink()
    with pytest.raises(UserError, match="has no test text of any language"):
        report_of(world)


def test_stale_translations_are_made_again_and_named(tmp_path):
    world = small_evaluation(tmp_path, seed=3)
    world.write()
    assert "translated again" not in report_of(world)["provenance"]
    folder = world.run.path / "decodes"
    identity = {"checkpoint": "step 3"}
    translations.store(
        folder, "test.fr-en", identity, translations.Translations(["old"] * LINES, "step 3")
    )
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
