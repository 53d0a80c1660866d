"""Batches of sentences and the order of translations; the search here returns the source ids."""

import json
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.text.vocabulary import VocabularySpec, train_vocabulary
from gshard_nmt.decoding.sampling import random_words
from gshard_nmt.decoding.translator import restrictions
from gshard_nmt.errors import UserError
from tests.decoding.copying import CONFIG, EOS, copying

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


def test_the_programs_of_several_shapes_are_compiled_together_and_once():
    search, devices = copying()
    short, long = [5, EOS], [*range(10, 15), EOS]
    search.compile([long, short, long], [[], [], []])
    assert (len(devices.compiled), devices.most_at_once) == (2, 2)
    assert len(devices.checked) == 2
    assert devices.batches == []
    search.translate_ids([short, long])
    assert len(devices.compiled) == 2


def test_at_most_two_programs_are_compiled_at_a_time():
    lengths = (4, 8, 12, 16, 20)
    search, devices = copying(config=CONFIG.replace(decode={"source_lengths": lengths}))
    search.warm_up()
    assert (len(devices.compiled), devices.most_at_once) == (5, 2)
    assert [batch["source_ids"].shape[1] for batch in devices.batches] == list(lengths)
    search.translate_ids([[5, EOS], [*range(10, 15), EOS], [*range(10, 28), EOS]])
    assert len(devices.compiled) == 5, "a translation waited for a compiler"


@pytest.mark.parametrize(
    ("lengths", "programs", "at_once"),
    [
        ((2,), ["decode", "decoding weights"], 2),
        ((2, 6), ["decode", "decode", "decoding weights"], 2),
        ((), [], 0),
    ],
)
def test_the_weights_are_prepared_by_a_program_that_is_compiled_once_and_for_text_only(
    lengths, programs, at_once
):
    search, devices = copying(is_cpu=True)
    for _ in range(2):
        search.translate_ids([[*range(10, 9 + length), EOS] for length in lengths])
        search.parameters = {}
    assert [json.loads(key)[0] for key in devices.compiled] == programs
    assert devices.most_at_once == at_once


@pytest.mark.parametrize(
    ("trained", "wanted", "expected"),
    [
        ("bfloat16", "model", "bfloat16"),
        ("default", "model", "float32"),
        ("auto", "bfloat16", "bfloat16"),
    ],
)
def test_on_a_cpu_a_model_decodes_with_the_products_of_its_training(trained, wanted, expected):
    config = CONFIG.replace(model={"matmul_precision": trained}, decode={"precision": wanted})
    search, devices = copying(config=config, is_cpu=True)
    search.translate_ids([[10, EOS]])
    (key,) = [key for key in devices.compiled if "decoding weights" in key]
    assert json.loads(key)[-1] == ("bfloat16" if expected == "bfloat16" else "model")
    assert search._specs["output_embedding"].dtype == expected


def test_a_prefix_is_in_its_row_and_gets_a_batch_that_is_long_enough():
    search, devices = copying()
    search.translate_ids([[5, EOS], [6, 7, EOS], [8, EOS]], [[], [9, 10], [*range(20, 30)]])
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


def test_sampling_gets_random_words_of_each_sentence_and_gives_samples_by_their_numbers():
    config = CONFIG.replace(decode={"method": "sample", "seed": 4})
    search, devices = copying(nbest=3, config=config)
    devices.search = lambda batch: [
        {
            "ids": np.tile([[7, EOS], [8, EOS], [9, EOS]], (3, 1, 1)),
            "scores": np.tile(np.float32([-2, -1, -3]), (3, 1)),
            "lengths": np.full((3, 3), 2),
        }
    ]
    (samples, _) = search.translate_ids([[5, EOS], [6, EOS]])
    assert samples == [([7], -2.0), ([8], -1.0), ([9], -3.0)]
    (batch,) = devices.batches
    words = list(zip(batch["random0"].tolist(), batch["random1"].tolist(), strict=True))
    assert words[:2] == [tuple(random_words(ids, 4)) for ids in ([5, EOS], [6, EOS])]


def test_searches_that_differ_have_programs_of_their_own_and_seeds_share_one():
    keys = []
    for decode in (
        *({}, {"expansion": "lingvo"}, {"method": "sample"}),
        *({"method": "sample", "seed": 9}, {"method": "sample", "top_k": 3}),
    ):
        search, devices = copying(config=CONFIG.replace(decode=decode))
        search.translate_ids([[5, EOS]])
        keys += devices.compiled
    assert [keys.index(key) for key in keys] == [0, 1, 2, 2, 4]


def test_n_best_translations_that_do_not_exist_are_left_out():
    search, _ = copying(nbest=2)
    even, odd = search.translate_ids([[5, EOS], [6, 7, EOS]])
    assert even == [([5], -2.0), ([5], -2.0)]
    assert odd == [([6, 7], -3.0)]


@pytest.mark.parametrize(
    ("facts", "never"), [({}, [0, 2, 3, 4, 5, 6]), ({"never": [0, 9]}, [0, 9])]
)
def test_an_id_without_text_is_never_written_or_what_an_imported_model_says(tmp_path, facts, never):
    spec = VocabularySpec(320, tags=("<doc>", "<2fr>", "<begin:fr>"))
    words = train_vocabulary(["a bad cab", "a dab"], spec, tmp_path / "target.model")
    for target, tags in (("fr", 1), ("de", 0)):
        data = {"pairs": [{"target": target}], **facts}
        run = types.SimpleNamespace(data=data, vocabularies=lambda: (words, words))
        assert restrictions(run) == {"never": never, "tags": tags}


@pytest.mark.parametrize("is_cpu", [False, True])
def test_every_program_is_checked_against_the_memory_before_it_runs(is_cpu):
    search, devices = copying(is_cpu=is_cpu, w=None)

    def run(*_):
        raise AssertionError("a program ran, or a batch was made, that does not fit")

    def refuse(program, work, held):
        assert dict(held) == ({"w": None} if is_cpu else {})
        raise UserError(f"{work.name} does not fit. {work.advice}")

    devices.search, devices.check_fits, search._pad = run, refuse, run
    for _ in range(2):
        with pytest.raises(UserError, match=r"^a batch of decoding does not fit\. Lower the beam "):
            search.translate_ids([[5, EOS]])


def test_new_weights_are_prepared_anew():
    """Else validation would translate with the weights of the validation before."""
    search, _ = copying(is_cpu=True, w="early")
    assert search.prepared_weights() == {"w": "early"}
    search.parameters = {"w": "late"}
    assert search.prepared_weights() == {"w": "late"}
