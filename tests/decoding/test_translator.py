"""Batches of sentences to translate, and translations in the order of their sentences.

The compiled search is replaced by one that returns the source ids, so that each translation says
what its row contained.
"""

import re
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.decoding import translator
from gshard_nmt.decoding.sampling import random_words
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


def test_a_sentence_that_is_too_long_keeps_its_beginning_and_its_end():
    search, devices = copying()
    search.translate_ids([[*range(10, 30), EOS]])
    assert devices.batches[0]["source_ids"][0].tolist() == [10, 11, 12, 13, 14, 15, 16, EOS]


def test_a_translation_is_never_longer_than_the_models_target_length():
    assert batch_shape(CONFIG, 8) == BatchShape(8, 14)
    short = CONFIG.replace(data={"target_length": 9})
    assert batch_shape(short, 8) == BatchShape(8, 9)


def test_a_prefix_is_in_its_row_and_gets_a_batch_that_is_long_enough():
    search, devices = copying()
    sources = [[5, EOS], [6, 7, EOS], [8, EOS]]
    search.translate_ids(sources, [[], [9, 10], [*range(20, 30)]])
    short, long = devices.batches
    # int(1.5 * 4) + 2 = 8 steps hold 7 tokens and the end, and int(1.5 * 8) + 2 = 14 hold 13.
    assert short["prefix"].tolist() == [[0] * 8, [9, 10, *[0] * 6], [0] * 8]
    assert long["source_ids"].tolist() == [[8, 1, *[0] * 6], [0] * 8, [0] * 8]
    assert long["prefix"][0].tolist() == [*range(20, 30), 0, 0, 0, 0]
    assert short["max_lengths"].tolist() == [5, 6, 1]
    assert long["max_lengths"].tolist() == [11, 1, 1]  # room for the prefix and the end


def test_the_score_of_a_translation_comes_from_the_program_that_translates():
    search, devices = copying()
    search.translate_ids([[5, EOS]])
    assert search.score_ids([[5, EOS], [6, 7, EOS]], [[9], []]) == [-2.0, -3.0]
    assert devices.batches[1]["prefix"].tolist() == [[9, 1, *[0] * 6], [1, *[0] * 7], [0] * 8]
    assert len(devices.compiled) == 1
    result = {"ids": np.zeros((3, 1, 8)), "lengths": np.ones((3, 1), int)}
    devices.search = lambda _: [result | {"scores": np.full((3, 1), np.nan)}]
    assert np.isnan(search.score_ids([[5, EOS]], [[9]])).all()


def test_sampling_gets_random_words_of_each_sentence_and_gives_the_best_sample_first():
    config = CONFIG.replace(decode={"method": "sample", "seed": 4})
    devices = CopyingDevices(nbest=3)
    search = Translator(config, step_functions(CONFIG), devices, {}, nbest=3)
    devices.search = lambda batch: [
        {
            "ids": np.tile([[7, EOS], [8, EOS], [9, EOS]], (3, 1, 1)),
            "scores": np.tile(np.float32([-2, -1, -3]), (3, 1)),
            "lengths": np.full((3, 3), 2),
        }
    ]
    (samples, _) = search.translate_ids([[5, EOS], [6, EOS]])
    assert samples == [([8], -1.0), ([7], -2.0), ([9], -3.0)]
    (batch,) = devices.batches
    words = list(zip(batch["random0"].tolist(), batch["random1"].tolist(), strict=True))
    assert words[:2] == [tuple(random_words(ids, 4)) for ids in ([5, EOS], [6, EOS])]


def test_searches_that_differ_have_programs_of_their_own_and_seeds_share_one():
    keys = []
    for decode in (
        *({}, {"expansion": "lingvo"}, {"method": "sample"}),
        *({"method": "sample", "seed": 9}, {"method": "sample", "top_k": 3}),
    ):
        devices = CopyingDevices()
        config = CONFIG.replace(decode=decode)
        Translator(config, step_functions(CONFIG), devices, {}).translate_ids([[5, EOS]])
        keys += devices.compiled
    assert [keys.index(key) for key in keys] == [0, 1, 2, 2, 4]


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

    def encode(self, texts):
        return [[ord(letter) for letter in text] for text in texts]

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


def test_each_line_has_its_prefix_and_an_empty_line_with_a_prefix_is_translated():
    translate = text_translator()
    devices = translate._translator._devices
    prefixes = ["", "xy", "", "z"]
    translations = list(translate.translate(["ab", "c", "", " "], "fr", "en", 3, prefixes))
    assert [nbest[0].text for nbest in translations] == ["ab", "c", "", " "]
    forced = [
        "".join(map(chr, row[row > 0]))
        for batch in devices.batches
        for row in batch["prefix"][batch["source_segments"][:, 0] > 0]
    ]
    assert sorted(forced) == ["", "xy", "z"]


def test_scores_come_in_order_and_two_empty_lines_have_score_zero():
    pairs = [("abcd", "x"), ("", ""), ("a", ""), ("", "y"), ("ab", "xyz")]
    scores = list(text_translator().score(iter(pairs), "fr", "en", chunk_size=2))
    assert scores == [-6.0, 0.0, -3.0, -2.0, -4.0]


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            ("a", "x" * 14),
            "line 3: the translation has 14 tokens; this model can write at most 13. Shorten the "
            "translation, or leave the line out.",
        ),
        (
            ("a" * 7, "x"),
            "line 3 has 9 tokens; a line with a given translation can have at most 8 "
            "(Decode.source_lengths). Split the line, or leave it out.",
        ),
    ],
)
def test_a_pair_that_is_too_long_to_be_scored_is_named(pair, message):
    translate = text_translator()
    assert list(translate.score([("a" * 6, "x" * 13)], "fr", "en")) == [-8.0]
    with pytest.raises(UserError) as error:
        list(translate.score([("a", "x"), ("a", "x"), pair], "fr", "en", chunk_size=2))
    assert str(error.value) == message
    with pytest.raises(UserError, match=r"^line 3"):
        list(translate.translate(["a", pair[0]], "fr", "en", prefixes=["", pair[1]], first_line=2))


@pytest.mark.parametrize("damaged", [[], ["checkpoints/3: it is damaged"]])
def test_the_best_checkpoint_is_loaded_and_a_damaged_one_is_named(
    monkeypatch, tmp_path, capsys, damaged
):
    class SavedCheckpoints:
        def __init__(self, folder, rules, identity):
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
    monkeypatch.setattr(translator.runtime, "start", lambda mesh, cache: devices)
    monkeypatch.setattr(translator, "Checkpoints", SavedCheckpoints)
    sizes = {"source_vocabulary": 300, "target_vocabulary": 200, "pairs": []}
    run = types.SimpleNamespace(
        data=sizes,
        programs_to_decode=None,
        identity=lambda: {"config": "the hash of this run"},
        checkpoints=tmp_path,
        vocabularies=lambda: (Letters(), Letters()),
    )
    loaded = load_translator(CONFIG, run)
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
    message = (
        "the checkpoint of step 7 has no translation for 'ab': its weights have values that are not "
        "finite. Use another checkpoint of the run."
    )
    assert str(error.value) == message
    with pytest.raises(UserError, match=re.escape(message)):
        list(translate.score([("ab", "x")], "fr", "en"))
