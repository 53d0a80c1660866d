"""What a run does after a bad step, and what it keeps of its batch."""

import json

import numpy as np
import pytest

from gshard_nmt.data.batching.packing import SIDES
from gshard_nmt.data.text.vocabulary import EOS, Vocabulary, VocabularySpec, train_vocabulary
from gshard_nmt.model.guard import BAD_LOSS, FINE, JUMP
from gshard_nmt.run import divergence
from gshard_nmt.run.divergence import (
    MOST_ROLLBACKS,
    MOST_SKIPS,
    DivergenceCounts,
    Step,
    StepWatch,
)
from gshard_nmt.run.folder import RunFolder

SOURCES = ["le chat dort", "der Hund schläft", "ça va"]
TARGETS = ["the cat sleeps", "the dog sleeps", "all right"]
LANGUAGES = ["fr", "de"]
OF_SENTENCE = [1, 2, 1]


class Run(RunFolder):
    """A run folder that has only its vocabularies."""

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        source, target = (Vocabulary.load(self.path / f"{side}.model") for side in SIDES)
        return source, target


@pytest.fixture
def run(tmp_path):
    spec = VocabularySpec(size=340)
    train_vocabulary(SOURCES, spec, tmp_path / "source.model")
    train_vocabulary(TARGETS, spec, tmp_path / "target.model")
    return Run(tmp_path)


def batch(run: RunFolder) -> dict[str, np.ndarray]:
    """Returns two rows: the first with the sentences 0 and 1, the second with sentence 2."""
    names = ("source_ids", "source_segments", "target_labels", "target_segments")
    arrays = {name: np.zeros((2, 40), np.int32) for name in (*names, "target_languages")}
    source, target = run.vocabularies()
    for sentence, (row, segment) in enumerate([(0, 1), (0, 2), (1, 1)]):
        sides = [
            (source.encode([SOURCES[sentence]])[0], "source_ids", "source_segments"),
            (target.encode([TARGETS[sentence]])[0], "target_labels", "target_segments"),
        ]
        for ids, id_name, segment_name in sides:
            start = int((arrays[segment_name][row] > 0).sum())
            place = slice(start, start + len(ids) + 1)
            arrays[id_name][row, place] = [*ids, EOS]
            arrays[segment_name][row, place] = segment
        arrays["target_languages"][row, place] = OF_SENTENCE[sentence]
    return arrays


METRICS = {"loss": float("nan"), "gradient_norm": float("inf"), "overflow_fraction": 0.25}
FACTS = {"decision": "skip", "metrics": divergence.as_json(METRICS)}


def bad_step(run: RunFolder) -> Step:
    return Step(450, batch(run), {"status": np.array(BAD_LOSS, np.int32)})


def test_the_batch_of_a_bad_step_is_kept_as_text_with_languages_and_metrics(run):
    name = divergence.record(run, bad_step(run), FACTS, LANGUAGES)
    assert name == "divergence/step-450.json"
    content = json.loads((run.path / name).read_text())
    assert content["sentences"] == [
        {"row": row, "language": LANGUAGES[OF_SENTENCE[i] - 1], "source": s, "target": t}
        for i, (row, s, t) in enumerate(zip([0, 0, 1], SOURCES, TARGETS, strict=True))
    ]
    assert content["metrics"] == {"loss": "nan", "gradient_norm": "inf", "overflow_fraction": 0.25}
    assert (content["step"], content["decision"]) == (450, "skip")


def test_every_process_keeps_its_own_rows_and_the_folder_does_not_grow_without_end(
    run, monkeypatch
):
    monkeypatch.setattr(divergence, "MOST_RECORDS", 2)
    bad = bad_step(run)._replace(rows=[6, 7])
    names = [
        divergence.record(run, bad, FACTS, LANGUAGES, process) for process in (3, 13, 0, 3, 3, 0, 0)
    ]
    parts = [".process-3", ".process-13", "", ".2.process-3", None, ".2", None]
    assert names == ["" if part is None else f"divergence/step-450{part}.json" for part in parts]
    assert len(list((run.path / "divergence").iterdir())) == 5
    content = json.loads((run.path / names[0]).read_text())
    assert [pair["row"] for pair in content["sentences"]] == [6, 6, 7]


def test_skipping_stops_if_nothing_is_learned_any_more():
    counts = DivergenceCounts()
    for step in range(1, MOST_SKIPS):
        assert counts.decide("skip", step, None) == "skip"
    # A good step lies between.
    for step in range(MOST_SKIPS + 1, 2 * MOST_SKIPS):
        assert counts.decide("skip", step, None) == "skip"
    assert counts.decide("skip", 2 * MOST_SKIPS, None) == "stop"


def test_a_run_goes_back_to_one_checkpoint_a_few_times_only():
    counts = DivergenceCounts()
    assert counts.decide("rollback", 90, None) == "stop"
    decisions = [counts.decide("rollback", 100 + i, 50) for i in range(MOST_ROLLBACKS + 1)]
    assert decisions == ["rollback"] * MOST_ROLLBACKS + ["stop"]
    # A new checkpoint is progress.
    assert counts.decide("rollback", 200, 150) == "rollback"


def step(number: int, status: int) -> Step:
    metrics = {"status": status, "gradient_norm": 1234.5, "usual_gradient_norm": 1.25}
    return Step(number, {}, metrics)


def test_a_bad_step_is_seen_after_the_next_one_has_started():
    watch = StepWatch()
    watch.add(step(1, FINE))
    watch.add(step(2, JUMP))
    assert watch.bad == []
    watch.add(step(3, FINE))
    (bad,) = watch.bad
    assert bad.number == 2
    assert bad.reason() == "the gradient norm jumped to 1.23e+03, and 1.25 is usual"
    # A run that saves or ends waits for its last step.
    watch.add(step(4, BAD_LOSS))
    watch.settle()
    assert [bad.number for bad in watch.bad] == [2, 4]
    assert watch.bad[1].reason() == "the loss is not finite"
    watch.settle()
    assert len(watch.bad) == 2
