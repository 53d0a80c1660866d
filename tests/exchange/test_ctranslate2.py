"""Folders of CTranslate2: the names that its own converters write, and the place of each weight.

scripts/make_ctranslate2_goldens.py wrote the names with CTranslate2 itself.
"""

import dataclasses
import json
import struct
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.exchange import ctranslate2
from gshard_nmt.model.config import Model
from gshard_nmt.model.transformer import declare
from tests.exchange import random_exports
from tests.exchange.random_exports import MODELS, SMALL
from tests.exchange.test_huggingface_writer import vocabulary  # noqa: F401 (a fixture)

GOLDEN = Path(__file__).parent / "goldens" / "ctranslate2.json"
SCORES = Path(__file__).parent / "goldens" / "ctranslate2_scores.json"


def weights_of(model: Model, size: int) -> dict[str, np.ndarray]:
    """Returns weights that are all different."""
    start, weights = 0, {}
    for name, parameter in declare(model, size, size).items():
        count = int(np.prod(parameter.shape))
        weights[name] = np.arange(start, start + count, dtype=np.float32).reshape(parameter.shape)
        start += count
    return weights


def read_binary(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads model.bin with the rules of CTranslate2's `Model::load`."""
    place = 0

    def take(form: str):
        nonlocal place
        values = struct.unpack_from(f"<{form}", content, place)
        place += struct.calcsize(f"<{form}")
        return values[0]

    def take_text() -> str:
        nonlocal place
        length = take("H")
        text = content[place : place + length]
        place += length
        assert text[-1] == 0
        return text[:-1].decode()

    assert take("I") == 6
    assert take_text() == "TransformerSpec"
    assert take("I") == 7
    variables = {}
    for _ in range(take("I")):
        name = take_text()
        shape = [take("I") for _ in range(take("B"))]
        dtype = [np.float32, np.int8, np.int16, np.int32][take("B")]
        size = take("I")
        variables[name] = np.frombuffer(content[place : place + size], dtype).reshape(shape)
        place += size
    aliases = {take_text(): take_text() for _ in range(take("I"))}
    assert place == len(content)
    return variables, aliases


@pytest.mark.parametrize("name", MODELS)
def test_the_names_are_those_of_ctranslate2(tmp_path, vocabulary, name):  # noqa: F811
    model = MODELS[name]
    weights = weights_of(model, vocabulary.size)
    sides = {"source": vocabulary, "target": vocabulary}
    ctranslate2.write(model, weights, sides, tmp_path)
    variables, aliases = read_binary((tmp_path / "model.bin").read_bytes())
    golden = json.loads(GOLDEN.read_text())[name]
    assert set(golden["needed"]) <= variables.keys() | aliases.keys()
    assert variables.keys() | aliases.keys() <= {*golden["needed"], *golden["optional"]}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(ctranslate2.FILES)
    pieces = json.loads((tmp_path / "source_vocabulary.json").read_text())
    assert pieces == vocabulary.pieces(range(vocabulary.size))
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["decoder_start_token"], config["eos_token"]) == (pieces[3], pieces[1])
    assert config["layer_norm_epsilon"] == (1e-6 if model.norm == "rms" else 1e-5)
    assert config["add_source_eos"]


@pytest.mark.parametrize("name", MODELS)
def test_our_scores_are_those_of_ctranslate2(name):
    """CTranslate2 4.8.5 scored the same sentences with the files that we wrote."""
    golden = json.loads(SCORES.read_text())[name]
    for ours, theirs in zip(random_exports.scores(name), golden, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_a_layer_has_its_weights():
    model = dataclasses.replace(MODELS["m2m_100"], positions="relative", position_offset=0)
    weights = weights_of(model, 9)
    variables, aliases = ctranslate2.variables_of(model, weights)
    block = {
        name.removeprefix("encoder/block/"): array[1]
        for name, array in weights.items()
        if name.startswith("encoder/block/")
    }
    x = np.random.default_rng(1).normal(size=8).astype(np.float32)
    attention = "encoder/layer_1/self_attention"
    joined = variables[f"{attention}/linear_0/weight"] @ x + variables[f"{attention}/linear_0/bias"]
    for part, name in zip(np.split(joined, 3), ("query", "key", "value"), strict=True):
        expected = np.einsum("m,mnd->nd", x, block[f"self_attention_0/{name}"])
        expected += block[f"self_attention_0/{name}_bias"]
        np.testing.assert_allclose(part, expected.ravel(), rtol=1e-5)
    context = np.random.default_rng(2).normal(size=(2, 4)).astype(np.float32)
    np.testing.assert_allclose(
        variables[f"{attention}/linear_1/weight"] @ context.ravel(),
        np.einsum("nd,ndm->m", context, block["self_attention_0/output"]),
        rtol=1e-5,
    )
    bias = variables[f"{attention}/relative_attention_bias"]
    np.testing.assert_array_equal(bias, block["self_attention_0/relative_bias"].T)
    norm = variables["encoder/layer_1/ffn/layer_norm/beta"]
    np.testing.assert_array_equal(norm, block["feed_forward_0/norm/bias"])
    assert variables["decoder/scale_outputs"] == np.float32(8**-0.5)
    assert aliases["encoder/embeddings_0/weight"] == "decoder/embeddings/weight"
    assert variables["encoder/num_heads"].dtype == np.int16
    np.testing.assert_array_equal(variables["decoder/projection/bias"], weights["output_bias"])


@pytest.mark.parametrize("name", ["m2m_100", "geglu"])
def test_ids_that_are_never_written_have_a_bias_and_long_sentences_their_sinusoids(
    tmp_path,
    vocabulary,  # noqa: F811
    name,
):
    weights = weights_of(MODELS[name], vocabulary.size)
    sides = {"source": vocabulary, "target": vocabulary}
    ctranslate2.write(MODELS[name], weights, sides, tmp_path, never=[0, 3], longest=1500)
    variables, _ = read_binary((tmp_path / "model.bin").read_bytes())
    bias = variables["decoder/projection/bias"]
    expected = np.zeros(vocabulary.size) + weights.get("output_bias", 0)
    assert np.flatnonzero(bias == -1e4).tolist() == [0, 3]
    np.testing.assert_array_equal(
        bias[[1, *range(4, len(bias))]], expected[[1, *range(4, len(bias))]]
    )
    if name == "m2m_100":
        assert variables["decoder/position_encodings/encodings"].shape[0] == 1500


def test_a_decoder_layer_has_its_weights():
    model = MODELS["geglu"]
    weights = weights_of(model, 9)
    variables, _ = ctranslate2.variables_of(model, weights)
    key, value = (
        weights[f"decoder/block/cross_attention_0/{name}"][0].reshape(8, 8).T
        for name in ("key", "value")
    )
    joined = variables["decoder/layer_0/attention/linear_1/weight"]
    np.testing.assert_array_equal(joined, np.concatenate([key, value]))
    dense = "decoder/block/feed_forward_0"
    for name, leaf in (("linear_0", "wi"), ("linear_0_noact", "wi_linear"), ("linear_1", "wo")):
        matrix = variables[f"decoder/layer_0/ffn/{name}/weight"]
        np.testing.assert_array_equal(matrix, weights[f"{dense}/{leaf}"][0].T)
    norm = variables["decoder/layer_0/attention/layer_norm/gamma"]
    np.testing.assert_array_equal(norm, weights["decoder/block/cross_attention_0/norm/scale"][0])
    for attention in ("self_attention", "attention"):
        assert variables[f"decoder/layer_0/{attention}/queries_scale"] == 1
    place = "decoder/layer_0/self_attention/relative_attention_max_distance"
    assert variables[place] == 128


@pytest.mark.parametrize(
    ("changes", "activation", "pre_norm"),
    [
        ({"activation": "relu"}, 0, 1),
        ({"activation": "geglu"}, 1, 1),
        ({"activation": "swish"}, 2, 1),
        ({"activation": "gelu", "norm": "layer", "norm_place": "after"}, 3, 0),
    ],
)
def test_settings_are_the_numbers_of_ctranslate2(changes, activation, pre_norm):
    """CTranslate2's enumeration has ReLU, GELUTanh, Swish and GELU in this order."""
    model = dataclasses.replace(SMALL, **changes)
    variables, _ = ctranslate2.variables_of(model, weights_of(model, 9))
    for stack in ("encoder", "decoder"):
        assert variables[f"{stack}/activation"] == activation
        assert variables[f"{stack}/pre_norm"] == pre_norm
        assert variables[f"{stack}/scale_embeddings"] == 0


def test_the_sinusoids_are_those_of_the_model():
    model = MODELS["m2m_100"]
    table = ctranslate2.variables_of(model, weights_of(model, 9))[0][
        "encoder/position_encodings/encodings"
    ]
    # Position 5 of a sentence is the seventh, as the first one is 2; M / 2 = 4 wavelengths.
    angles = 7 * 10_000.0 ** -(np.arange(4) / 3)
    np.testing.assert_allclose(table[5], [*np.sin(angles), *np.cos(angles)], atol=1e-6)


def test_learned_positions_are_the_tables_of_both_sides():
    """The first token of a sentence has row 0."""
    weights = weights_of(MODELS["learned"], 9)
    variables, aliases = ctranslate2.variables_of(MODELS["learned"], weights)
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        table = variables[f"{stack}/position_encodings/encodings"]
        np.testing.assert_array_equal(table, weights[f"{side}_position_embedding"])
        assert not any("relative" in name for name in variables)
    # Each side has its own embedding, and the logits use that of the target.
    source = variables["encoder/embeddings_0/weight"]
    np.testing.assert_array_equal(source, weights["source_embedding"])
    assert aliases == {"decoder/projection/weight": "decoder/embeddings/weight"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"experts": 4, "moe_every": 1},
            "Model.experts is 4; it must be 0 for --format ctranslate2",
        ),
        ({"encoder_layers": 0}, "Model.encoder_layers is 0; it must be at least 1"),
        ({"head_dim": 3}, "Model.heads * Model.head_dim is 6; it must be Model.model_dim = 8"),
    ],
)
def test_a_model_that_ctranslate2_lacks_is_refused(changes, message):
    with pytest.raises(UserError) as error:
        ctranslate2.check(dataclasses.replace(SMALL, **changes))
    assert message in str(error.value)
