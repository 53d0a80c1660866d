"""Validation: scores of each language, and the best checkpoint."""

import math
import types

import numpy as np
import pytest

from gshard_nmt.evaluation import validation
from gshard_nmt.evaluation.validation import Validation
from gshard_nmt.run.checkpoint import BEST
from gshard_nmt.run.counters import RunCounters
from gshard_nmt.settings.gin_reader import load_config

DEMO = load_config("demo").replace(train={"dev_batches": 2, "bleu_sentences": 0})
STATE = {"parameters/w": "weights", "moments/w": "moments", "step": 1}


class SavedCheckpoints:
    """The checkpoints of a run, in memory."""

    def __init__(self, best_score: float | None = None) -> None:
        self.saved: list[tuple] = []
        self.best_score = best_score

    def latest(self, kind):
        assert kind == BEST
        return None if self.best_score is None else 3

    def metadata(self, kind):
        return {"step": 3, "score": self.best_score}

    def save(self, kind, step, groups, metadata):
        self.saved.append((kind, step, groups, metadata))


class Log(dict):
    """The metrics of each step."""

    def write(self, step, values):
        self[step] = dict(values)


@pytest.fixture
def validate(monkeypatch):
    """Returns a function that makes a validation whose nats per token the test sets."""
    nats = {"fr": [1.0], "de": [1.0]}

    def dev_batches(data, config, language, limit):
        assert limit == 2
        # A batch holds its number of tokens and its nats per token: the first is short.
        yield from (
            {"tokens": 10.0 * (i + 1), "nats": value} for i, value in enumerate(nats[language])
        )

    def eval_step(weights, batch):
        assert weights["w"] in ("weights", "later weights")
        return [{"nll_sum": batch["tokens"] * batch["nats"], "tokens": batch["tokens"]}]

    monkeypatch.setattr(validation, "dev_batches", dev_batches)

    def make(checkpoints: SavedCheckpoints, config=DEMO, run=None) -> Validation:
        devices = types.SimpleNamespace(put=lambda batch, specs: batch)
        programs = types.SimpleNamespace(
            config=config, devices=devices, eval_step=eval_step, batch_specs={}, functions=None
        )
        data = types.SimpleNamespace(languages=lambda config: sorted(nats))
        return Validation(run, programs, data, checkpoints)

    make.nats = nats
    return make


def test_the_score_is_the_mean_over_languages_of_nats_per_token(validate):
    log, counters = Log(), RunCounters(step=5)
    validate.nats |= {"fr": [1.0, 4.0], "de": [2.0]}
    line = validate(SavedCheckpoints()).run(counters, STATE, log)
    # French has 10 tokens of 1 nat and 20 of 4 nats.
    assert log[5] == {"dev_nll/fr": 3.0, "dev_nll/de": 2.0, "dev_nll": 2.5}
    assert line == "step 5: dev nll 2.500"


def test_a_language_without_dev_text_is_left_out(validate):
    log = Log()
    validate.nats |= {"fr": [], "de": [2.0]}
    validate(SavedCheckpoints()).run(RunCounters(step=5), STATE, log)
    assert log[5] == {"dev_nll/de": 2.0, "dev_nll": 2.0}


def test_only_a_better_score_is_saved_and_without_the_optimizer(validate):
    checkpoints = SavedCheckpoints()
    run = validate(checkpoints)
    for step, nats in enumerate([3.0, 2.0, 2.5, 2.0, math.nan, 1.5], 1):
        validate.nats |= {"fr": [nats], "de": [nats]}
        run.run(RunCounters(step=step), STATE, Log())
    assert [(step, metadata["score"]) for _, step, _, metadata in checkpoints.saved] == [
        (1, -3.0),
        (2, -2.0),
        (6, -1.5),
    ]
    assert {kind for kind, *_ in checkpoints.saved} == {BEST}
    assert all(groups == {"parameters": {"w": "weights"}} for _, _, groups, _ in checkpoints.saved)


def test_a_resumed_run_must_beat_the_score_of_its_best_checkpoint(validate):
    checkpoints = SavedCheckpoints(best_score=-2.0)
    run = validate(checkpoints)
    validate.nats |= {"fr": [2.5], "de": [2.5]}
    run.run(RunCounters(step=4), STATE, Log())
    assert checkpoints.saved == []
    validate.nats |= {"fr": [1.5], "de": [1.5]}
    run.run(RunCounters(step=5), STATE, Log())
    assert [step for _, step, _, _ in checkpoints.saved] == [5]


class Words:
    """A vocabulary in which each id is a word."""

    def decode(self, sentences):
        return [" ".join(f"w{i}" for i in ids) for ids in sentences]


def test_if_dev_text_is_decoded_bleu_chooses_the_best_checkpoint(validate, monkeypatch):
    translators, used = [], []

    class CopyingTranslator:
        """Translates the first language without mistakes, and of the others nothing."""

        def __init__(self, config, functions, devices, weights) -> None:
            translators.append(self)
            self.parameters = weights

        def translate_ids(self, sources):
            used.append(self.parameters["w"])
            return [[(ids if ids[0] < 100 else [7], 0.0)] for ids in sources]

    def dev_examples(data, config, language, limit):
        first = {"de": 10, "fr": 110}[language]
        ids = [np.arange(first + i, first + i + 6) for i in range(limit)]
        return [types.SimpleNamespace(source=row, target=row) for row in ids]

    monkeypatch.setattr(validation, "Translator", CopyingTranslator)
    monkeypatch.setattr(validation, "dev_examples", dev_examples)
    checkpoints, log = SavedCheckpoints(), Log()
    config = DEMO.replace(train={"bleu_sentences": 3})
    folder = types.SimpleNamespace(vocabularies=lambda: (None, Words()))
    run = validate(checkpoints, config, folder)
    line = run.run(RunCounters(step=1), STATE, log)
    assert log[1]["dev_bleu/de"] == pytest.approx(100)
    assert log[1]["dev_bleu/fr"] < 1
    assert log[1]["dev_bleu"] == (log[1]["dev_bleu/de"] + log[1]["dev_bleu/fr"]) / 2
    assert line == "step 1: dev nll 1.000, dev BLEU 50.0 on 3 sentences a language"
    # The nll is better now, but BLEU is the same.
    validate.nats |= {"fr": [0.5], "de": [0.5]}
    run.run(RunCounters(step=2), {**STATE, "parameters/w": "later weights"}, log)
    assert [(step, metadata["score"]) for _, step, _, metadata in checkpoints.saved] == [
        (1, log[1]["dev_bleu"])
    ]
    assert len(translators) == 1
    assert used == ["weights", "later weights"]


def test_a_model_without_translations_is_scored_as_if_they_were_empty(validate, monkeypatch):
    """Weights that are not finite give empty n-best lists."""

    class BrokenTranslator:
        def __init__(self, *arguments) -> None:
            pass

        def translate_ids(self, sources):
            return [[] for _ in sources]

    row = np.arange(10, 16)
    examples = [types.SimpleNamespace(source=row, target=row)]
    monkeypatch.setattr(validation, "Translator", BrokenTranslator)
    monkeypatch.setattr(validation, "dev_examples", lambda *arguments: examples)
    folder, log = types.SimpleNamespace(vocabularies=lambda: (None, Words())), Log()
    run = validate(SavedCheckpoints(), DEMO.replace(train={"bleu_sentences": 1}), folder)
    run.run(RunCounters(step=1), STATE, log)
    assert log[1]["dev_bleu"] == 0
