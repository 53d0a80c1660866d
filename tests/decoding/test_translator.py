"""Batches of sentences to translate, and translations in the order of their sentences.

The compiled search is replaced by one that returns the source ids, so that each translation says
what its row contained.
"""

import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.decoding import translator
from gshard_nmt.decoding.translator import (
    BatchShape,
    TextTranslator,
    Translator,
    batch_shape,
    load_translator,
)
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import step_functions
from gshard_nmt.run.checkpoint import Restored
from gshard_nmt.run.manifest import Manifest
from gshard_nmt.run.retention import Retention
from gshard_nmt.settings.gin_reader import load_config

EOS = 1
CONFIG = load_config("demo").replace(
    decode={"rows": 3, "source_lengths": (8, 4), "length_ratio": 1.5, "length_margin": 2, "beam": 2}
)


class CopyingDevices:
    """Devices on which a translation is a copy of its source, and its score minus its length.

    The second of the n-best does not exist if the source has an odd number of ids.
    """

    mesh = CONFIG.mesh

    def __init__(self, nbest: int = 1) -> None:
        self.nbest = nbest
        self.compiled: list[str] = []
        self.batches: list[dict[str, np.ndarray]] = []

    def compile(self, key, lower):
        self.compiled.append(key)
        signature = types.SimpleNamespace(inputs=({}, {}))
        program = lambda parameters, batch: self.search(batch)  # noqa: E731
        return type(
            "Program", (), {"signature": signature, "__call__": lambda _, *g: program(*g)}
        )()

    def put(self, arrays, specs):
        self.batches.append(arrays)
        return arrays

    def fetch(self, arrays):
        return arrays

    def search(self, batch):
        ids = np.repeat(batch["source_ids"][:, np.newaxis], self.nbest, axis=1)
        lengths = np.repeat(
            (batch["source_segments"] > 0).sum(1)[:, np.newaxis], self.nbest, axis=1
        )
        lengths[:, 1:][lengths[:, 1:] % 2 == 1] = 0
        return [{"ids": ids, "scores": -lengths.astype(np.float32), "lengths": lengths}]


def copying(nbest: int = 1) -> tuple[Translator, CopyingDevices]:
    devices = CopyingDevices(nbest)
    return Translator(CONFIG, step_functions(CONFIG), devices, {}, nbest), devices


SENTENCES = st.lists(
    st.lists(st.integers(4, 99), max_size=10).map(lambda ids: [*ids, EOS]), max_size=12
)


@settings(deadline=None, max_examples=40)
@given(SENTENCES)
def test_every_sentence_is_translated_once_in_order(sources):
    search, devices = copying()
    translations = search.translate_ids(sources)
    cut = [ids if len(ids) <= 8 else [*ids[:7], EOS] for ids in sources]
    assert translations == [[(ids[:-1], -float(len(ids)))] for ids in cut]
    rows = sum((batch["source_segments"][:, 0] > 0).sum() for batch in devices.batches)
    assert rows == len(sources)


@settings(deadline=None, max_examples=40)
@given(SENTENCES)
def test_each_sentence_goes_into_the_shortest_batch_that_holds_it(sources):
    search, devices = copying()
    search.translate_ids(sources)
    lengths = [min(len(ids), 8) for ids in sources]
    for batch in devices.batches:
        in_batch = (batch["source_segments"] > 0).sum(1)
        assert len(in_batch) == 3
        assert in_batch.max() <= (width := batch["source_ids"].shape[1])
        assert width == 4 or in_batch[in_batch > 0].min() > 4
    widths = {4 if length <= 4 else 8 for length in lengths}
    assert len(devices.compiled) == len(set(devices.compiled)) == len(widths)
    full = sum(-(-sum((n <= 4) == (w == 4) for n in lengths) // 3) for w in widths)
    assert len(devices.batches) == full


def test_a_batch_is_padded_with_rows_that_the_search_skips():
    search, devices = copying()
    search.translate_ids([[5, EOS], [6, 7, EOS]])
    (batch,) = devices.batches
    assert batch["source_ids"].tolist() == [[5, 1, 0, 0], [6, 7, 1, 0], [0, 0, 0, 0]]
    assert batch["source_segments"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]]
    assert batch["source_positions"].tolist() == [[0, 1, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0]]
    # int(1.5 * length) + 2 tokens at most; a row without a sentence needs one step.
    assert batch["max_lengths"].tolist() == [5, 6, 1]


def test_after_a_warm_up_no_translation_waits_for_a_compiler():
    search, devices = copying()
    search.warm_up()
    assert len(devices.compiled) == len(CONFIG.decode.source_lengths)
    search.translate_ids([[5, EOS], [*range(10, 15), EOS], [*range(10, 30), EOS]])
    assert len(devices.compiled) == len(CONFIG.decode.source_lengths)


def test_a_sentence_that_is_too_long_keeps_its_beginning_and_its_end():
    search, devices = copying()
    search.translate_ids([[*range(10, 30), EOS]])
    assert devices.batches[0]["source_ids"][0].tolist() == [10, 11, 12, 13, 14, 15, 16, EOS]


def test_a_translation_is_never_longer_than_the_models_target_length():
    assert batch_shape(CONFIG, 8) == BatchShape(8, 14)
    short = CONFIG.replace(data={"target_length": 9})
    assert batch_shape(short, 8) == BatchShape(8, 9)


def test_n_best_translations_that_do_not_exist_are_left_out():
    search, _ = copying(nbest=2)
    even, odd = search.translate_ids([[5, EOS], [6, 7, EOS]])
    assert even == [([5], -2.0), ([5], -2.0)]
    assert odd == [([6, 7], -3.0)]


class Letters:
    """A vocabulary of letters; `encode_source` marks the direction with a first id."""

    def encode_source(self, lines, source, target):
        assert (source, target) == ("fr", "en")
        return [[2, *map(ord, line), EOS] for line in lines]

    def decode(self, sentences):
        return ["".join(chr(i) for i in ids if i > 2) for ids in sentences]


def text_translator(nbest: int = 1) -> TextTranslator:
    run = types.SimpleNamespace(vocabularies=lambda: (Letters(), Letters()))
    return TextTranslator(run, copying(nbest)[0], step=7)


@pytest.mark.parametrize("chunk_size", [1, 2, 100])
def test_text_is_translated_line_by_line_and_an_empty_line_stays_empty(chunk_size):
    lines = ["abcde", "", "f", "  ", "gh"]
    translations = list(text_translator().translate(lines, "fr", "en", chunk_size))
    assert [[h.text for h in nbest] for nbest in translations] == [
        ["abcde"],
        [""],
        ["f"],
        [""],
        ["gh"],
    ]
    assert [nbest[0].score for nbest in translations] == [-7, 0, -3, 0, -4]


def test_the_n_best_of_a_line_are_texts_with_scores():
    (nbest,) = text_translator(nbest=2).translate(["ab"], "fr", "en")
    assert [(h.text, h.score) for h in nbest] == [("ab", -4.0), ("ab", -4.0)]


def test_a_line_that_is_too_long_is_translated_in_pieces_that_are_joined():
    # A row has 8 ids: the mark of the direction, at most 6 letters, and the end.
    lines = ["ab. cd", "ab. cdefg hi", "", "abcdefghijklm", "\u3000"]
    translations = [best for (best,) in text_translator().translate(lines, "fr", "en")]
    assert [best.text for best in translations] == [
        *("ab. cd", "ab. cdefg hi", ""),
        "abcdef ghi jklm",
        "",
    ]
    assert [best.pieces for best in translations] == [1, 3, 1, 3, 1]
    # The score of a piece is minus its number of ids. Each of these lines has log-probabilities
    # -n * norm(n) for its pieces of n ids, and all their ids together.
    norm = [((5 + n) / 6) ** 0.6 for n in range(40)]
    for best, sizes in ((translations[1], (5, 7, 4)), (translations[3], (8, 5, 6))):
        log_prob = -sum(n * norm[n] for n in sizes)
        assert best.score == pytest.approx(log_prob / norm[sum(sizes)])


def test_the_n_best_of_a_long_line_are_joined_as_far_as_every_piece_has_them():
    first, second = text_translator(nbest=2).translate(["ab. cd. ef", "abc. defg"], "fr", "en")
    # Pieces of 5, 5 and 4 ids: an odd number of ids has no second translation.
    assert [best.text for best in first] == ["ab. cd. ef"]
    assert [best.text for best in second] == ["abc. defg"] * 2


def test_a_long_line_in_chinese_is_joined_without_spaces():
    translator = text_translator()
    translator._source = types.SimpleNamespace(
        encode_source=lambda lines, source, target: [[2, *map(ord, line), EOS] for line in lines]
    )
    ((best,),) = translator.translate(["我来了。你走了。"], "fr", "zh")
    assert best.text == "我来了。你走了。"


@pytest.mark.parametrize("damaged", [[], ["checkpoints/3: it is damaged"]])
def test_the_best_checkpoint_is_loaded_and_a_damaged_one_is_named(
    monkeypatch, tmp_path, capsys, damaged
):
    class SavedCheckpoints:
        def __init__(self, folder, rules, identity, processes):
            assert folder == tmp_path
            assert identity == {"config": "the hash of this run"}
            assert rules == Retention.of(CONFIG.train)

        def restore_best(self, groups):
            step = [3, 5][len(damaged)]
            weights = {"weights of": step, "names": list(groups["parameters"])}
            manifest = Manifest(step, {}, saved_at=1.0)
            return Restored(manifest, {"parameters": weights}, tuple(damaged))

    devices = CopyingDevices()
    devices.abstract = lambda specs: specs
    monkeypatch.setattr(translator.runtime, "start", lambda mesh, *_, **__: devices)
    monkeypatch.setattr(translator.fitting, "fitted", lambda config, *_: config)
    monkeypatch.setattr(translator, "Checkpoints", SavedCheckpoints)
    sizes = {"source_vocabulary": 300, "target_vocabulary": 200, "pairs": []}
    run = types.SimpleNamespace(
        data=sizes,
        programs_to_decode=None,
        programs=tmp_path / "programs",
        identity=lambda: {"config": "the hash of this run"},
        checkpoints=tmp_path,
        vocabularies=lambda: (Letters(), Letters()),
    )
    loaded = load_translator(CONFIG.replace(decode={"rows": 4}), run)
    assert loaded.step == loaded._translator.parameters["weights of"] == (5 if damaged else 3)
    expected = "".join(f"{text}. Using the checkpoint of step 5 instead.\n" for text in damaged)
    assert capsys.readouterr().err == expected
    # Evaluation keeps translations under the checkpoint that was read, not the one that was tried first.
    assert loaded.checkpoint == Manifest(loaded.step, {}, saved_at=1.0).label
    names = step_functions(CONFIG, sizes).declare_parameters()
    assert set(loaded._translator.parameters["names"]) == set(names)


@pytest.mark.parametrize("broken", ["lengths", "scores"])
def test_a_model_whose_numbers_are_not_finite_is_an_error_and_not_an_empty_line(broken):
    translate = text_translator()
    devices = translate._translator._devices
    search = devices.search

    def without_hypotheses(batch):
        (result,) = search(batch)
        if broken == "lengths":
            return [result | {"lengths": np.zeros_like(result["lengths"])}]
        return [result | {"scores": np.full_like(result["scores"], np.nan)}]

    devices.search = without_hypotheses
    with pytest.raises(UserError) as error:
        list(translate.translate(["", "ab"], "fr", "en"))
    assert str(error.value) == (
        "the checkpoint of step 7 has no translation for 'ab': its weights have values that are not "
        "finite. Use another checkpoint of the run."
    )


def test_evaluation_names_the_weights_and_the_lines_that_were_too_long(monkeypatch, capsys):
    loaded = []

    def cached(*arguments):
        loaded.append(arguments)
        run = types.SimpleNamespace(vocabularies=lambda: (Letters(), Letters()))
        origin = "steps 3, 7 (averaged)"
        return TextTranslator(run, copying()[0], 7, "the label", origin), "beam 2"

    monkeypatch.setattr(translator, "_cached_translator", cached)
    lines = ["ab", "ab. cd. ef", "cd"]
    translated = translator.translate_run("runs/demo", "fr", "en", lines, "average:2")
    assert translated == (lines, "steps 3, 7 (averaged), beam 2", "the label")
    assert loaded == [("runs/demo", "average:2", False)]
    assert capsys.readouterr().err == (
        "fr-en: line 2 has more than 8 tokens, so it was translated in pieces.\n"
    )
