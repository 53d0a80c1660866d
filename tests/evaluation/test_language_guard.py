"""What the old languages lose: what is found, what is chosen, and the average that is saved."""

import dataclasses

import numpy as np
import pytest

from gshard_nmt.evaluation import language_guard, metrics, significance
from gshard_nmt.evaluation.language_guard import Change, Comparison, Outcome, choose, compare
from gshard_nmt.evaluation.validation import DevOutput
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.config import Train
from gshard_nmt.settings.gin_reader import load_config
from tests.run.checkpoints import LETTERS, abstract, assert_equal, state

REFERENCES = [f"the {w} house stands near the river number {i}" for i, w in enumerate("ab" * 20)]
WORSE = [line.replace("near the", "by a") for line in REFERENCES]
SLIGHTLY_WORSE = [*WORSE[:1], *REFERENCES[1:]]


def outputs(**hypotheses) -> list[DevOutput]:
    return [
        DevOutput(f"{language}-en", language, "en", lines, REFERENCES)
        for language, lines in hypotheses.items()
    ]


def counts(lines) -> np.ndarray:
    return significance.statistics(lines, [REFERENCES], "en")


def outcome(share: float, score: float, *deltas: float, p: float = 1.0, rows=None) -> Outcome:
    changes = [Change("fr-en", 20.0, 20.0 + delta, p) for delta in deltas]
    return Outcome(share, {}, score, changes, rows if rows is not None else counts(REFERENCES))


def test_each_old_direction_is_compared_and_the_largest_loss_comes_first():
    changes = compare(outputs(de=WORSE, fr=REFERENCES), outputs(fr=WORSE, de=REFERENCES, nn=WORSE))
    # The new language is not guarded, and what de wins does not make up for fr.
    assert [change.direction for change in changes] == ["fr-en", "de-en"]
    assert [change.is_loss for change in changes] == [True, False]
    scores = [metrics.bleu(lines, REFERENCES, "en") for lines in (REFERENCES, WORSE)]
    assert [changes[0].before, changes[0].after] == pytest.approx(scores)
    found = Outcome(1.0, {}, 0.0, changes, counts(REFERENCES))
    assert (found.losses, found.loses) == (1, True)
    assert found.mean == pytest.approx(0)


def test_the_tests_of_all_directions_are_one_family():
    """With many directions, a difference that one test alone calls significant may be chance."""
    before = outputs(**{f"l{i}": REFERENCES for i in range(20)})
    some = [*WORSE[:6], *REFERENCES[6:]]
    (alone,) = compare(before[:1], outputs(l0=some))
    assert alone.is_loss
    others = {f"l{i}": SLIGHTLY_WORSE for i in range(1, 20)}
    assert not any(change.is_loss for change in compare(before, outputs(l0=some, **others)))


def test_a_small_loss_of_all_languages_counts_too():
    assert outcome(1.0, 9.0, -0.6, -0.5).loses
    assert not outcome(1.0, 9.0, -0.6, -0.4).loses
    assert not outcome(1.0, 9.0).loses


def test_the_best_for_the_new_language_with_which_no_old_one_loses_is_chosen():
    new = outcome(1.0, 9.0, -3.0, p=0.01)
    parts = [outcome(0.8, 8.0, -2.0, p=0.01), outcome(0.6, 7.0, 0.1), outcome(0.4, 5.0, 0.2)]
    assert choose([new, *parts]).share == 0.6
    assert choose([new, parts[0]]) is new
    assert choose([outcome(1.0, 9.0, 0.1), *parts]).share == 1.0


def test_a_smaller_share_that_is_as_good_within_the_error_is_chosen():
    # The two halves exchange their errors, so the difference has an error and a mean of 0.
    first = counts([*SLIGHTLY_WORSE[:20], *REFERENCES[20:]])
    second = counts([*REFERENCES[:20], *SLIGHTLY_WORSE[20:]])
    best, less = outcome(0.8, 90.0, rows=first), outcome(0.6, 89.9, rows=second)
    assert choose([best, less]).share == 0.6
    assert choose([best, dataclasses.replace(less, bleu=50.0)]).share == 0.8


def test_both_runs_translate_the_same_text_of_their_languages(monkeypatch):
    class Text:
        def __init__(self, vocabulary, data, config, languages):
            assert (vocabulary, config.train.bleu_sentences) == ("words", 3)
            self.languages = languages

        def translated(self, translator):
            return outputs(**{language: translator[language] for language in self.languages})

    @dataclasses.dataclass
    class Translator:
        of_ids: dict
        target_vocabulary = "words"

    class Data:
        def languages(self, config):
            return ["de", "fr", "nn"]

    monkeypatch.setattr(language_guard.DevText, "read", Text)
    config = load_config("demo").replace(train={"bleu_sentences": 3})
    old, new = Translator({"de": WORSE, "fr": REFERENCES}), Translator({"nn": REFERENCES})
    new.of_ids |= {"de": REFERENCES, "fr": REFERENCES}
    found = Comparison(old, config, Data(), "nn").outcome(new, 0.6)
    assert (found.share, found.bleu) == (0.6, pytest.approx(100))
    assert found.scores.keys() == {"dev_bleu/de", "dev_bleu/fr", "dev_bleu/nn", "dev_bleu"}
    assert [change.direction for change in found.changes] == ["fr-en", "de-en"]


def test_an_average_is_the_best_checkpoint_and_the_trained_ones_stay(tmp_path, monkeypatch):
    run = RunFolder(tmp_path)
    train = Train(keep_last=2, keep_best=0, bleu_sentences=4, best_metric="dev_bleu/nn")
    monkeypatch.setattr(RunFolder, "identity", lambda run: {"config": "aa"})
    writer = CheckpointWriter.of(run, train)
    for step, score in ((1, 13.0), (3, 12.0), (6, 11.0)):
        scores = Scores({"dev_bleu/nn": score}, {"bleu_sentences": 4})
        writer.save(step, state(step), LETTERS, {"step": step}, scores)
    writer.close()
    weights, letters = state(4)["parameters"], LETTERS["parameters"]
    parts = ("0.4 of step 7 of old", "0.6 of step 6 of new")
    folder = language_guard.save_average(run, train, weights, letters, {"dev_bleu/nn": 9.0}, parts)
    assert folder == run.checkpoints / "7"
    CheckpointWriter.of(run, train).remove_superseded()
    checkpoints = Checkpoints.of(run, train)
    assert checkpoints.steps() == [3, 6, 7]
    assert checkpoints.best_first() == [7, 6, 3]
    manifest = checkpoints.manifest(7)
    assert (manifest.average_of, manifest.facts) == (parts, {"step": 6})
    np.testing.assert_array_equal(checkpoints.read(manifest, "parameters", "b"), weights["b"])
    # Training goes on from the newest one that was trained.
    restored = checkpoints.restore(abstract(state(6)))
    assert restored.manifest.step == 6
    assert_equal(restored.groups, state(6))
    assert "has only weights: it can be decoded" in restored.passed_over[0]
