"""Logits, gate choices and translations of transformers, which scripts/make_import_goldens.py kept."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.decoding.fitting import BatchShape
from gshard_nmt.decoding.translator import Translator
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.huggingface import (
    GENERATION,
    Layout,
    has_layout,
    model_of,
    read_config,
    read_generation,
)
from gshard_nmt.exchange.huggingface_tokenizer import read_tokenizer
from gshard_nmt.exchange.huggingface_weights import Tensors, read_weights
from gshard_nmt.model import moe, transformer
from gshard_nmt.model.layers import Mode
from gshard_nmt.run.arrays import step_functions
from gshard_nmt.settings.config import Decode
from tests.decoding.copying import CONFIG, CopyingDevices

GOLDENS = Path(__file__).parent / "goldens"
FAMILIES = ("m2m_100", "nllb_moe", "marian")
MOST_TOKENS = 16


@dataclasses.dataclass
class Imported:
    """A golden, read as a model of ours."""

    name: str

    def __post_init__(self):
        folder = GOLDENS / self.name
        self.sentences = json.loads((folder / "expected.json").read_text())["sentences"]
        config = read_config(folder)
        self.orders = read_tokenizer(folder, config).orders
        self.model = model_of(config)
        self.sizes = {f"{side}_vocabulary": len(o.rows) for side, o in self.orders.items()}
        declared = transformer.declare(self.model, *self.sizes.values())
        self.layout = Layout(config, self.model, self.orders)
        weights = read_weights(self.layout, Tensors(folder), declared)
        self.weights = {name: tf.constant(weight) for name, weight in weights.items()}
        assert {name: tuple(w.shape) for name, w in self.weights.items()} == {
            name: parameter.shape for name, parameter in declared.items()
        }

    def ids(self, side: str, old: list[int]) -> list[int]:
        """Returns our ids of tokens."""
        # A token has a lower id than its copies.
        rows = list(self.orders[side].rows)
        return [rows.index(i) for i in old]


@functools.cache
def imported(name: str) -> Imported:
    return Imported(name)


def batch_of(model: Imported) -> dict[str, tf.Tensor]:
    """Returns the sentences of a golden, one in each row; the targets are its greedy translations."""
    rows = []
    for sentence in model.sentences:
        target = model.ids("target", sentence["greedy"][1:])
        rows.append((model.ids("source", sentence["source"]), [3, *target]))
    batch = {}
    for side, column, name in (("source", 0, "ids"), ("target", 1, "inputs")):
        length = max(len(row[column]) for row in rows)
        ids = np.zeros((len(rows), length), np.int32)
        for r, row in enumerate(rows):
            ids[r, : len(row[column])] = row[column]
        lengths = np.array([[len(row[column])] for row in rows])
        segments = (np.arange(length) < lengths).astype(np.int32)
        positions = np.arange(length, dtype=np.int32) * segments
        batch |= {f"{side}_{name}": ids, f"{side}_segments": segments}
        batch |= {f"{side}_positions": positions}
    return {name: tf.constant(array) for name, array in batch.items()}


def forced(model: Imported):
    """Returns the logits of `batch_of`, with the settings of evaluation."""
    batch, p = batch_of(model), model.weights
    return transformer.encode_and_decode(model.model, p, batch, Mode())[0].numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_logits_are_those_of_transformers(name):
    model = imported(name)
    logits = forced(model)
    order = model.orders["target"]
    for row, sentence in zip(logits, model.sentences, strict=True):
        expected = np.array(sentence["logits"])
        columns = np.array(model.ids("target", list(range(expected.shape[1]))))
        tokens = ~np.isin(columns, order.never)
        np.testing.assert_allclose(
            row[: len(expected), columns[tokens]], expected[:, tokens], rtol=0, atol=1e-5
        )
        # What is never written is far below all others.
        assert row[: len(expected), order.never].max() < np.median(expected) - 50


def test_the_tokens_choose_the_experts_of_transformers(monkeypatch):
    model, routings, route = imported("nllb_moe"), [], moe.route

    def noting(*arguments, **keywords):
        routings.append(route(*arguments, **keywords))
        return routings[-1]

    monkeypatch.setattr(moe, "route", noting)
    forced(model)
    chosen = [(routing.slot // routing.capacity).numpy() for routing in routings]
    assert [len(sentence["experts"]) for sentence in model.sentences] == [len(chosen)] * 3
    visited = set()
    for row, sentence in enumerate(model.sentences):
        for ours, theirs in zip(chosen, sentence["experts"], strict=True):
            assert ours[row, : len(theirs)].tolist() == theirs
            visited |= set(np.ravel(theirs).tolist())
    assert visited == {0, 1, 2, 3}


def test_a_model_with_another_routing_has_not_the_layout_any_more():
    model, config = imported("nllb_moe").model, read_config(GOLDENS / "nllb_moe")
    routings = [dataclasses.replace(model, routing=routing) for routing in ("top2", "switch")]
    assert [has_layout(config, routing) for routing in routings] == [True, False]


def test_a_start_that_is_eos_reads_its_embedding():
    model = imported("m2m_100")
    before = forced(model)
    table = model.weights["target_embedding"].numpy()
    table[3] = 9.0
    model = dataclasses.replace(model)
    model.weights["target_embedding"] = tf.constant(table)
    # The output has BOS too.
    np.testing.assert_array_equal(np.delete(forced(model), 3, -1), np.delete(before, 3, -1))


@pytest.mark.parametrize(
    ("name", "search"), [("m2m_100", "greedy"), *[(name, "beam") for name in FAMILIES]]
)
def test_the_translations_are_those_of_transformers(name, search):
    """Beam 4 without a length norm, until no hypothesis can improve."""
    model = imported(name)
    beam = 1 if search == "greedy" else 4
    decode = Decode(beam=beam, expansion="fairseq", length_norm="none", alpha=0.0)
    config = CONFIG.replace(model=model.model, decode=decode)
    functions = step_functions(config, {**model.sizes, "pairs": [{"language": "fr"}]})
    translator = Translator(config, functions, CopyingDevices(), {})
    batch = {k: v for k, v in batch_of(model).items() if k.startswith("source")}
    rows, length = batch["source_ids"].shape
    batch["max_lengths"] = tf.fill([rows], MOST_TOKENS)
    first = model.ids("target", model.sentences[0]["greedy"][1:2]) if name != "marian" else [0]
    prefix = np.zeros((rows, MOST_TOKENS), np.int32)
    prefix[:, 0] = first
    batch["prefix"] = tf.constant(prefix)
    (result,) = translator.search(BatchShape(length, MOST_TOKENS))(model.weights, batch)
    for ids, count, sentence in zip(
        result["ids"].numpy(), result["lengths"].numpy(), model.sentences, strict=True
    ):
        assert ids[0, : count[0]].tolist() == model.ids("target", sentence[search][1:])


@pytest.fixture
def folder(tmp_path):
    """A copy of a golden, to be changed."""
    return Path(shutil.copytree(GOLDENS / "m2m_100", tmp_path / "model"))


def changed(folder: Path, **values) -> dict:
    """Changes config.json, and reads it."""
    content = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(content))
    return read_config(folder)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "bart"}, "the type 'bart'; it must be one of m2m_100, nllb-moe, marian."),
        ({"activation_function": "tanh"}, '"tanh"; it must be one of relu, gelu, swish, silu.'),
        ({"decoder_ffn_dim": 99}, "encoder_ffn_dim is 24 and decoder_ffn_dim is 99; it must be equal"),
        ({"d_model": 17}, "d_model is 17; it must be a multiple of the 2 attention heads"),
        ({"scale_embedding": False}, "scale_embedding is false; it must be true"),
        ({"d_model": "wide"}, 'd_model is "wide"; it must be a whole number'),
    ],
)  # fmt: skip
def test_a_model_that_ours_cannot_be_is_refused(folder, values, message):
    with pytest.raises(UserError) as error:
        model_of(changed(folder, **values))
    assert message in str(error.value)


MARIAN = {"model_type": "marian", "eos_token_id": 0}


@pytest.mark.parametrize(
    ("content", "config", "never", "beam"),
    [
        ({"bad_words_ids": [[50], [7, 8], [0]], "length_penalty": 2.0}, {}, {50}, None),
        ({"suppress_tokens": [3], "num_beams": None}, {}, {3}, None),
        # Older folders have no such file.
        (None, {"bad_words_ids": [[9]], "num_beams": 5, "max_length": 7}, {9}, 5),
        ({"num_beams": 2}, {"bad_words_ids": [[9]], "num_beams": 5}, {9}, 2),
    ],
)
def test_the_beam_and_what_is_never_written_are_taken(tmp_path, content, config, never, beam):
    if content is not None:
        (tmp_path / GENERATION).write_text(json.dumps(content))
    generation = read_generation(tmp_path, MARIAN | config)
    assert (generation.never, generation.beam) == (never, beam)
    assert generation.content == config | (content or {})


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / GENERATION).write_text('{"bad_words_ids": [50]}')
    with pytest.raises(UserError, match=r"generation_config\.json is damaged: bad_words_ids\[0\]"):
        read_generation(tmp_path, MARIAN)
