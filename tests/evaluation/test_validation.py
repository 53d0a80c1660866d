"""Validation: scores of each language."""

import math
import pathlib
import types

import numpy as np
import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import validation
from gshard_nmt.evaluation.language_guard import Guard, Verdict
from gshard_nmt.evaluation.validation import Validation
from gshard_nmt.run.blend import SHARES
from gshard_nmt.run.checkpoint.retention import Scores
from gshard_nmt.run.log.counters import RunCounters
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.processes import ALONE

DEMO = load_config("demo").replace(train={"dev_batches": 2, "bleu_sentences": 0})
STATE = {"parameters/w": "weights", "moments/w": "moments", "step": 1}


class FakeTranslator:
    """Compiles nothing. `compiled` is what it was asked to compile for, in order."""

    def __init__(self, config=None, functions=None, devices=None, weights=None) -> None:
        self.parameters = weights
        self.compiled: list[list[list[int]]] = []

    def compile(self, sources, _prefixes):
        self.compiled.append(sources)


NO_GUARD = pathlib.Path("a run without a guard")


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

    def compile_eval_step(meanwhile):
        meanwhile()
        return eval_step

    def dev_pairs(data, config, language):
        return [types.SimpleNamespace(language=language, target="en", folder=f"{language}-en")]

    monkeypatch.setattr(validation, "dev_batches", dev_batches)
    monkeypatch.setattr(validation, "dev_pairs", dev_pairs)
    monkeypatch.setattr(validation, "restrictions", lambda run: {})

    def make(config=DEMO, run=None, processes=ALONE) -> Validation:
        devices = types.SimpleNamespace(put=lambda batch, specs: batch)
        programs = types.SimpleNamespace(
            config=config,
            devices=devices,
            compile_eval_step=compile_eval_step,
            batch_specs={},
            functions=None,
        )
        data = types.SimpleNamespace(languages=lambda config: sorted(nats))
        return Validation(run, programs, data, processes)

    make.nats = nats
    return make


def test_the_score_is_the_mean_over_languages_of_nats_per_token(validate):
    log, counters = Log(), RunCounters(step=5)
    validate.nats |= {"fr": [1.0, 4.0], "de": [2.0]}
    line, scores = validate().run(counters, STATE, log)
    # French has 10 tokens of 1 nat and 20 of 4 nats.
    assert log[5] == {"dev_nll/fr": 3.0, "dev_nll/de": 2.0, "dev_nll": 2.5}
    assert line == "step 5: dev nll 2.500"
    assert scores == Scores(log[5], {"dev_batches": 2, "bleu_sentences": 0})


def test_the_moving_average_is_scored_if_there_is_one(validate):
    """`eval_step` accepts no other weights."""
    state = {"parameters/w": "not these", "ema/w": "weights", "step": 1}
    validation = validate(DEMO.replace(train={"ema": 0.99}))
    line, _ = validation.run(RunCounters(step=5), state, Log())
    assert line == "step 5: dev nll 1.000 (Train.ema)"


def test_a_language_without_dev_text_is_left_out(validate):
    log = Log()
    validate.nats |= {"fr": [], "de": [2.0]}
    validate().run(RunCounters(step=5), STATE, log)
    assert log[5] == {"dev_nll/de": 2.0, "dev_nll": 2.0}


def test_without_dev_text_there_are_no_scores(validate):
    """Scores of 0 would make the first checkpoint the best for ever."""
    log = Log()
    validate.nats |= {"fr": [], "de": []}
    line, scores = validate().run(RunCounters(step=5), STATE, log)
    assert line == "step 5: no dev text fits into the rows, so no scores"
    assert scores == Scores()
    assert log == {}


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
    log = Log()
    validate.nats |= {"fr": [math.nan], "de": [1.0]}
    _, scores = validate().run(RunCounters(step=5), STATE, log)
    assert math.isnan(log[5]["dev_nll"])
    assert scores.values == {"dev_nll/de": 1.0}


class Words:
    """A vocabulary in which each id is a word."""

    def first(self, target):
        return []

    def decode(self, sentences):
        return [" ".join(f"w{i}" for i in ids) for ids in sentences]


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
    log = Log()
    config = DEMO.replace(train={"bleu_sentences": 3})
    folder = types.SimpleNamespace(path=NO_GUARD, vocabularies=lambda: (None, Words()))
    run = validate(config, folder)
    line, scores = run.run(RunCounters(step=1), STATE, log)
    assert log[1]["dev_bleu/de"] == pytest.approx(100)
    assert log[1]["dev_bleu/fr"] < 1
    assert log[1]["dev_bleu"] == (log[1]["dev_bleu/de"] + log[1]["dev_bleu/fr"]) / 2
    assert line == "step 1: dev nll 1.000, dev BLEU 50.0 on 3 sentences a direction"
    assert scores.values == log[1]
    assert scores.scored_with["beam"] == config.decode.beam
    # Other settings of the search make scores that cannot be compared.
    other = validate(config.replace(decode={"alpha": 0.0}), folder)
    assert other.run(RunCounters(step=1), STATE, Log())[1].scored_with != scores.scored_with
    run.run(RunCounters(step=2), {**STATE, "parameters/w": "later weights"}, log)
    assert len(translators) == 2
    # Its programs were compiled once, while the program of the loss was.
    assert [len(sources) for sources in translators[0].compiled] == [6]
    assert used == ["weights", "weights", "later weights"]


def test_weights_that_give_no_hypothesis_score_0(validate, monkeypatch):
    class SilentTranslator(FakeTranslator):
        def translate_ids(self, sources, _prefixes):
            return [[] for _ in sources]

    pair = types.SimpleNamespace(source=np.arange(6), target=np.arange(6))
    monkeypatch.setattr(validation, "Translator", SilentTranslator)
    monkeypatch.setattr(validation, "dev_examples", lambda *arguments: [pair])
    folder = types.SimpleNamespace(path=NO_GUARD, vocabularies=lambda: (None, Words()))
    run = validate(DEMO.replace(train={"bleu_sentences": 1}), folder)
    assert run.run(RunCounters(step=1), STATE, Log())[1].values["dev_bleu"] == 0


def test_a_language_has_the_mean_score_of_its_directions_each_as_its_target_is_scored(
    validate, monkeypatch
):
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

    example = types.SimpleNamespace(source=np.arange(6), target=np.arange(6))
    monkeypatch.setattr(validation, "Translator", CopyingTranslator)
    monkeypatch.setattr(validation, "dev_pairs", dev_pairs)
    monkeypatch.setattr(validation, "dev_examples", lambda *arguments: [example])
    monkeypatch.setattr(validation.metrics, "bleu", score)
    folder = types.SimpleNamespace(path=NO_GUARD, vocabularies=lambda: (None, Words()))
    run = validate(DEMO.replace(train={"bleu_sentences": 1}), folder)
    scores = run.run(RunCounters(step=1), STATE, Log())[1].values
    names = ("dev_bleu/de", "dev_bleu/fr", "dev_bleu")
    assert [scores[name] for name in names] == [10.0, 25.0, 17.5]


def test_a_checkpoint_that_the_guard_refuses_gets_no_score(validate, monkeypatch, tmp_path):
    class CopyingTranslator(FakeTranslator):
        def translate_ids(self, sources, _prefixes):
            return [[(ids if self.parameters["w"] == "weights" else [9], 0.0)] for ids in sources]

    def dev_examples(data, pair, limit):
        return [
            types.SimpleNamespace(source=row, target=row) for row in np.arange(60).reshape(-1, 6)
        ]

    monkeypatch.setattr(validation, "Translator", CopyingTranslator)
    monkeypatch.setattr(validation, "dev_examples", dev_examples)
    references = [" ".join(f"w{i}" for i in row) for row in np.arange(60).reshape(-1, 6)]
    Guard(tmp_path / "guard.json", "de", "the old run", {"fr-en": references}).write()
    config = DEMO.replace(train={"bleu_sentences": 10, "best_metric": "dev_bleu/de"})
    folder = types.SimpleNamespace(path=tmp_path, vocabularies=lambda: (None, Words()))
    run, log = validate(config, folder), Log()
    line, scores = run.run(RunCounters(step=1), STATE, log)
    assert line.endswith("0 of 1 directions significantly worse: passes")
    assert scores.values["dev_bleu/de"] == pytest.approx(100)
    later = {**STATE, "parameters/w": "later weights"}
    line, scores = run.run(RunCounters(step=2), later, log)
    assert line.endswith("1 of 1 directions significantly worse: does not pass")
    # The log has the score; the checkpoint does not, so it is never the best one.
    assert "dev_bleu/de" in log[2]
    assert "dev_bleu/de" not in scores.values
    assert "dev_bleu/fr" in scores.values
    assert [(v.step, v.passes) for v in Guard.of(tmp_path).verdicts] == [(1, True), (2, False)]


@pytest.fixture
def blends(validate, monkeypatch, tmp_path):
    """Judges parts of a change; a part of the references of each language is translated well.

    Takes the numbers of good translations of German (new) and French (old), or their places, by share of
    the change; none are good for a share that is not named.
    """
    rows = np.arange(60).reshape(-1, 6)

    class Translator(FakeTranslator):
        def translate_ids(self, sources, _prefixes):
            good = blends.good.get(self.parameters["w"], (0, 0))
            places = [*range(10)] * 2  # German comes first
            right = [range(n) if isinstance(n, int) else n for n in good]
            return [
                [(ids if i in places_of else [*ids[:-1], 9], 0.0)]
                for i, places_of, ids in zip(
                    places, [right[0]] * 10 + [right[1]] * 10, sources, strict=True
                )
            ]

    class Start:
        def blended(self, learned, share):
            assert learned == {"w": 1.0}
            return {"w": share}

    monkeypatch.setattr(validation, "Translator", Translator)
    examples = [types.SimpleNamespace(source=row, target=row) for row in rows]
    monkeypatch.setattr(validation, "dev_examples", lambda *_: examples)
    references = [" ".join(f"w{i}" for i in row) for row in rows]

    def blends(good, check_stop=lambda: None, processes=ALONE, sentences=10, earlier=100.0):
        blends.good, blends.notes = good, []
        # An earlier end of the run, with another part of the change, was better if nothing else is said.
        before = [Verdict(1, earlier, [], share) for share in (1.0, 0.8)]
        Guard(tmp_path / "guard.json", "de", "the old run", {"fr-en": references}, before).write()
        config = DEMO.replace(train={"bleu_sentences": 10, "best_metric": "dev_bleu/de"})
        folder = types.SimpleNamespace(path=tmp_path, vocabularies=lambda: (None, Words()))
        run, state = validate(config, folder), {"parameters/w": 1.0}
        run._nll = lambda weights: {"de": 2 - weights["w"]}
        counters = RunCounters(step=3)
        _, scores = run.run(counters, state, Log())
        blends.run = run
        metric = "dev_bleu/de" if sentences else "dev_nll"
        config = config.replace(train={"bleu_sentences": sentences, "best_metric": metric})
        again = validate(config, folder, processes)  # as in another start
        again._nll = run._nll
        choice = again.blends(counters, state, Start(), blends.notes.append, check_stop)
        return scores, choice

    return blends


def test_the_smallest_part_that_passes_and_is_as_good_as_the_best_is_chosen(blends, tmp_path):
    # 0.4 of the change is not tried: 0.5 of it passes, and is worse than 0.6.
    all_of_it, (weights, scores) = blends({1.0: (10, 0), 0.8: (9, 0), 0.6: (8, 10), 0.5: (5, 10)})
    assert weights == {"w": 0.6}
    verdicts = [verdict for verdict in Guard.of(tmp_path).verdicts if verdict.step == 3]
    assert [(v.share, v.passes) for v in verdicts] == [
        (1.0, False), (0.8, False), (0.6, True), (0.5, True),
    ]  # fmt: skip
    # Scores with the same settings are compared with those of other steps.
    assert scores.scored_with == all_of_it.scored_with
    assert scores.values["dev_bleu/de"] == verdicts[2].bleu
    assert scores.values["dev_bleu/fr"] == pytest.approx(100)
    assert scores.values["dev_bleu"] == (verdicts[2].bleu + scores.values["dev_bleu/fr"]) / 2
    # Also a run whose best checkpoint has the lowest dev_nll can compare them.
    assert scores.values["dev_nll"] == scores.values["dev_nll/de"] == pytest.approx(1.4)
    assert blends.notes[1].startswith("0.6 of the change: BLEU ")
    assert blends.notes[-1] == (
        "the checkpoint of step 3 decodes with 0.6 of the change since the start"
    )


def test_a_smaller_part_is_not_chosen_if_an_earlier_step_is_better_than_it(blends, tmp_path):
    # Other sentences are good, so the smaller part is as good within the error of the difference.
    good = {1.0: (3, 0), 0.8: (range(5), 10), 0.6: (range(6, 10), 10), 0.5: (0, 10)}
    _, (weights, _) = blends(good)
    assert weights == {"w": 0.6}
    scores = {v.share: v.bleu for v in Guard.of(tmp_path).verdicts if v.step == 3}
    assert scores[0.6] < scores[0.8]
    _, (weights, _) = blends(good, earlier=(scores[0.6] + scores[0.8]) / 2)
    assert weights == {"w": 0.8}


def test_every_process_chooses_what_the_first_one_chooses(blends):
    """Each reads guard.json, and a shared disk may show it to one of them earlier than to another."""

    class Second:
        count, is_first = 2, False
        # Each time how many numbers process 0 has to tell, and the numbers: go on with each of four
        # parts, stop, and the place of 0.4 in the shares.
        said = iter([1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 3])

        def gather(self, array):
            return np.array([[next(self.said)], array]) if array.size else np.zeros([2, 0], int)

    choice = blends({1.0: (10, 0), 0.8: (9, 0), 0.6: (8, 10), 0.4: (9, 10)}, processes=Second())[1]
    assert choice[0] == {"w": 0.4}
    assert len(blends.notes) == 5


def test_a_start_that_translates_no_dev_text_says_so(blends):
    with pytest.raises(
        UserError, match=r"Train\.bleu_sentences is 0, so no dev text is translated"
    ):
        blends({1.0: (10, 0), 0.8: (9, 10)}, sentences=0)


def test_a_user_may_stop_before_each_part(blends, tmp_path):
    calls = []

    def check_stop():
        calls.append(len(calls))
        if len(calls) == 2:
            raise KeyboardInterrupt

    good = {1.0: (10, 0), 0.8: (9, 10)}
    with pytest.raises(KeyboardInterrupt):
        blends(good, check_stop)
    assert [v.share for v in Guard.of(tmp_path).verdicts if v.step == 3] == [1.0, 0.8]


def test_verdicts_on_parts_that_are_not_saved_are_taken_back(blends, tmp_path):
    blends({1.0: (10, 0), 0.8: (9, 10), 0.6: (8, 10)})
    blends.run.without_blends(3)
    verdicts = Guard.of(tmp_path).verdicts
    # Those of an earlier end of the run were saved.
    assert [(v.step, v.share) for v in verdicts] == [(1, 1.0), (1, 0.8), (3, 1.0)]


@pytest.mark.parametrize(
    ("good", "parts"),
    [
        ({1.0: (10, 10), 0.8: (9, 10)}, 1),  # all of it is better
        (dict.fromkeys((1.0, *SHARES), (10, 0)), len(SHARES)),  # nothing passes
    ],
)
def test_no_part_is_chosen_if_none_is_as_good(blends, good, parts):
    _, chosen = blends(good)
    assert chosen is None
    assert len(blends.notes) == parts


@pytest.mark.parametrize(
    ("good", "chosen", "parts"),
    [
        # Each part is better than the one before it, so all are tried.
        (dict(zip((1.0, *SHARES), [(n, 10) for n in range(4, 11)], strict=True)), 0.2, 6),
        # A part that does not pass says nothing of the next one.
        (
            {1.0: (9, 10), 0.8: (9, 0), 0.6: (10, 0), 0.5: (9, 0), 0.4: (10, 10), 0.3: (8, 10)},
            0.4,
            5,
        ),
        ({1.0: (9, 0), 0.8: (9, 0), 0.6: (9, 0), 0.2: (8, 10)}, 0.2, 6),
        ({1.0: (9, 10), 0.8: (10, 10), 0.6: (9, 10)}, 0.8, 2),
        # Equal parts: the smallest of them is chosen.
        ({1.0: (9, 10), 0.8: (9, 10), 0.6: (9, 10), 0.5: (8, 10)}, 0.6, 3),
    ],
)
def test_smaller_parts_are_tried_until_one_that_passes_is_worse(blends, good, chosen, parts):
    _, (weights, _) = blends(good)
    assert weights == {"w": chosen}
    assert len([note for note in blends.notes if "of the change: BLEU" in note]) == parts
