"""Validation: scores of each language."""

import math
import types

import numpy as np
import pytest

from gshard_nmt.evaluation import validation
from gshard_nmt.evaluation.validation import Validation
from gshard_nmt.run.checkpoint.manifest import Scores
from gshard_nmt.run.training_state import RunCounters
from gshard_nmt.settings.gin_reader import load_config

DEMO = load_config("demo").replace(train={"dev_batches": 2, "bleu_sentences": 0})
STATE = {"parameters/w": "weights", "moments/w": "moments", "step": 1}


class FakeTranslator:
    """Compiles nothing. `compiled` is what it was asked to compile for, in order."""

    def __init__(self, config=None, functions=None, devices=None, weights=None) -> None:
        self.parameters = weights
        self.compiled: list[list[list[int]]] = []

    def compile(self, sources, _prefixes):
        self.compiled.append(sources)


@pytest.fixture
def validate(monkeypatch):
    """Returns a function that makes a validation whose nats per token the test sets."""
    nats = {"fr": [1.0], "de": [1.0]}

    def dev_batches(data, config, language, limit):
        assert limit == 2
        # A batch holds its number of tokens and its nats per token: the first is short.
        yield from ({"tokens": 10.0 * (i + 1), "nats": v} for i, v in enumerate(nats[language]))

    def eval_step(weights, batch):
        assert weights["w"] in ("weights", "later weights")
        return [{"nll_sum": batch["tokens"] * batch["nats"], "tokens": batch["tokens"]}]

    def compile_eval_step(meanwhile):
        meanwhile()
        return eval_step

    def dev_pairs(data, config, language):
        return [types.SimpleNamespace(language=language, target="en", folder=f"{language}-en")]

    monkeypatch.setattr(validation, "dev_batches", dev_batches)
    monkeypatch.setattr(validation, "dev_pairs", dev_pairs)
    monkeypatch.setattr(validation, "restrictions", lambda run: {})

    def make(config=DEMO, run=None) -> Validation:
        programs = types.SimpleNamespace(
            config=config,
            devices=types.SimpleNamespace(put=lambda batch, specs: batch),
            compile_eval_step=compile_eval_step,
            batch_specs={},
            functions=None,
        )
        data = types.SimpleNamespace(languages=lambda config: sorted(nats))
        return Validation(run, programs, data)

    make.nats = nats
    return make


def test_the_score_is_the_mean_over_languages_of_nats_per_token(validate):
    counters = RunCounters(step=5)
    validate.nats |= {"fr": [1.0, 4.0], "de": [2.0]}
    line, scores, values = validate().run(counters, STATE)
    # French has 10 tokens of 1 nat and 20 of 4 nats.
    assert values == {"dev_nll/fr": 3.0, "dev_nll/de": 2.0, "dev_nll": 2.5}
    assert line == "step 5: dev nll 2.500"
    assert scores == Scores(values, {"dev_batches": 2, "bleu_sentences": 0})


def test_the_moving_average_is_scored_if_there_is_one(validate):
    """`eval_step` accepts no other weights."""
    state = {"parameters/w": "not these", "ema/w": "weights", "step": 1}
    line, *_ = validate(DEMO.replace(train={"ema": 0.99})).run(RunCounters(step=5), state)
    assert line == "step 5: dev nll 1.000 (Train.ema)"


def test_without_dev_text_there_are_no_scores(validate):
    """Scores of 0 would make the first checkpoint the best for ever."""
    validate.nats |= {"fr": [], "de": []}
    line, scores, values = validate().run(RunCounters(step=5), STATE)
    assert line == "step 5: no dev text fits into the rows, so no scores"
    assert scores == Scores()
    assert values == {}


@pytest.mark.parametrize(
    ("examples", "dev_every", "warns"), [(0, 5, True), (3, 5, False), (0, 0, False)]
)
def test_missing_dev_text_is_said_before_training(validate, examples, dev_every, warns):
    validation = validate(DEMO.replace(train={"dev_every": dev_every}))
    pair = types.SimpleNamespace(splits={"dev": types.SimpleNamespace(examples=examples)})
    validation._data.pairs_of = lambda config: [pair]
    assert validation.warning.startswith("the prepared data has no dev text, so") == warns
    assert bool(validation.warning) == warns


def test_a_score_that_is_not_finite_is_logged_and_does_not_count(validate):
    validate.nats |= {"fr": [math.nan], "de": [1.0]}
    _, scores, values = validate().run(RunCounters(step=5), STATE)
    assert math.isnan(values["dev_nll"])
    assert scores.values == {"dev_nll/de": 1.0}


class Words:
    """A vocabulary in which each id is a word."""

    def first(self, target):
        return []

    def decode(self, sentences):
        return [" ".join(f"w{i}" for i in ids) for ids in sentences]


RUN = types.SimpleNamespace(vocabularies=lambda: (None, Words()))
IDS = np.arange(6)
EXAMPLE = types.SimpleNamespace(source=IDS, target=IDS)


def test_dev_text_is_decoded_for_bleu(validate, monkeypatch):
    translators, used = [], []

    class CopyingTranslator(FakeTranslator):
        """Translates the first language without mistakes, and of the others nothing."""

        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            translators.append(self)

        def translate_ids(self, sources, _prefixes):
            used.append(self.parameters["w"])
            return [[(ids if ids[0] < 100 else [7], 0.0)] for ids in sources]

    def dev_examples(data, pair, limit):
        first = {"de": 10, "fr": 110}[pair.language]
        ids = [np.arange(first + i, first + i + 6) for i in range(limit)]
        return [types.SimpleNamespace(source=row, target=row) for row in ids]

    monkeypatch.setattr(validation, "Translator", CopyingTranslator)
    monkeypatch.setattr(validation, "dev_examples", dev_examples)
    config = DEMO.replace(train={"bleu_sentences": 3})
    run = validate(config, RUN)
    line, scores, values = run.run(RunCounters(step=1), STATE)
    assert values["dev_bleu/de"] == pytest.approx(100)
    assert values["dev_bleu/fr"] < 1
    assert values["dev_bleu"] == (values["dev_bleu/de"] + values["dev_bleu/fr"]) / 2
    assert line == "step 1: dev nll 1.000, dev BLEU 50.0 on 3 sentences a direction"
    assert scores.values == values
    assert scores.scored_with["beam"] == config.decode.beam
    # Other settings of the search make scores that cannot be compared.
    other = validate(config.replace(decode={"alpha": 0.0}), RUN)
    assert other.run(RunCounters(step=1), STATE)[1].scored_with != scores.scored_with
    other = validate(config.replace(decode={"precision": "bfloat16"}), RUN)
    assert other._settings() != run._settings()
    run.run(RunCounters(step=2), {**STATE, "parameters/w": "later weights"})
    assert len(translators) == 2
    # Its programs were compiled once, while the program of the loss was.
    assert [len(sources) for sources in translators[0].compiled] == [6]
    assert used == ["weights", "weights", "later weights"]


def test_weights_that_give_no_hypothesis_score_0(validate, monkeypatch):
    class SilentTranslator(FakeTranslator):
        def translate_ids(self, sources, _prefixes):
            return [[] for _ in sources]

    monkeypatch.setattr(validation, "Translator", SilentTranslator)
    monkeypatch.setattr(validation, "dev_examples", lambda *arguments: [EXAMPLE])
    run = validate(DEMO.replace(train={"bleu_sentences": 1}), RUN)
    assert run.run(RunCounters(step=1), STATE)[1].values["dev_bleu"] == 0


def test_a_language_has_the_mean_score_of_its_directions(validate, monkeypatch):
    def dev_pairs(data, config, language):
        targets = {"de": ("en",), "fr": ("en", "zh")}[language]
        return [
            types.SimpleNamespace(language=language, target=target, folder="") for target in targets
        ]

    def score(hypotheses, references, target):
        return {"en": 10.0, "zh": 40.0}[target]

    class CopyingTranslator(FakeTranslator):
        def translate_ids(self, sources, _prefixes):
            return [[(ids, 0.0)] for ids in sources]

    monkeypatch.setattr(validation, "Translator", CopyingTranslator)
    monkeypatch.setattr(validation, "dev_pairs", dev_pairs)
    monkeypatch.setattr(validation, "dev_examples", lambda *arguments: [EXAMPLE])
    monkeypatch.setattr(validation.metrics, "bleu", score)
    run = validate(DEMO.replace(train={"bleu_sentences": 1}), RUN)
    scores = run.run(RunCounters(step=1), STATE)[1].values
    names = ("dev_bleu/de", "dev_bleu/fr", "dev_bleu")
    assert [scores[name] for name in names] == [10.0, 25.0, 17.5]
