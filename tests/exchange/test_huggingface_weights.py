"""Our models as Hugging Face folders: what was imported goes back, and what goes out comes back."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from gshard_nmt.data.text.vocabulary import BOS, Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.huggingface import NEVER, Layout, layout_of, model_of, read_config
from gshard_nmt.exchange.huggingface_weights import (
    SINGLE,
    Tensors,
    read_weights,
    tensors_of,
    write,
    write_tensors,
)
from gshard_nmt.model.transformer import declare
from gshard_nmt.settings.gin_reader import load_config
from tests.exchange.test_huggingface import FAMILIES, GOLDENS, imported

CONFIG = load_config("m2m_demo").replace(model={"model_dim": 64, "head_dim": 16, "hidden_dim": 48})
EXPERTS = CONFIG.replace(
    model={"experts": 3, "moe_every": 2, "encoder_layers": 4, "expert_stacks": "encoder"}
)


def weights_of(model, size: int) -> dict[str, np.ndarray]:
    """Returns random weights; scales are near 1, so that norms do not hide a mistake."""
    random = np.random.default_rng(3)
    return {
        name: np.float32(random.normal(size=p.shape, scale=0.5) + name.endswith("scale"))
        for name, p in declare(model, size, size).items()
    }


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """A vocabulary with our special ids."""
    return Vocabulary(imported("m2m_100").orders["target"].model)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_imported_model_goes_back_to_its_own_weights(name):
    model, golden = imported(name), Tensors(GOLDENS / name)
    tensors = tensors_of(model.layout, {n: w.numpy() for n, w in model.weights.items()})
    # transformers computes the sinusoids itself.
    assert set(tensors) == {name for name in golden.unread if "embed_positions" not in name}
    half = {"nllb_moe": "bfloat16", "marian": np.float16}.get(name)
    for tensor, values in tensors.items():
        original = golden.read(tensor, values.shape)
        if half == "bfloat16":
            # The upper half of the bits, rounded.
            bits = np.ascontiguousarray(values).view(np.uint32)
            values = ((bits + 0x8000) & 0xFFFF0000).view(np.float32)
        elif half:
            values = values.astype(half)
        # A factor that is no power of 2 is rounded twice.
        np.testing.assert_allclose(values, original, rtol=0 if half else 2e-7, atol=0)


def test_a_trained_start_of_marian_is_its_pad():
    """A decoder of Marian reads PAD first, which has an id of its own here."""
    layout = imported("marian").layout
    weights = weights_of(layout.model, len(layout.orders["target"].rows))
    table = tensors_of(layout, weights)["model.shared.weight"]
    start = weights["target_embedding"][BOS] / 4  # the square root of 16
    np.testing.assert_array_equal(table[layout.config["decoder_start_token_id"]], start)


def test_the_special_ids_are_those_of_fairseq(vocabulary):
    weights = weights_of(CONFIG.model, vocabulary.size)
    layout = layout_of(CONFIG, {"source": vocabulary, "target": vocabulary})
    table = tensors_of(layout, weights)["model.shared.weight"]
    ours = weights["target_embedding"] / 8  # the square root of 64
    np.testing.assert_array_equal(table[[0, 1, 2, 3]], ours[[3, 0, 1, 2]])
    np.testing.assert_array_equal(table[4:], ours[4:])
    assert [layout.config[f"{name}_token_id"] for name in ("pad", "eos", "decoder_start")] == [
        *(1, 2, 0)
    ]


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {"norm": "rms", "activation": "geglu", "encoder_layers": 0, "head_dim": 8},
            [
                "Model.norm is 'rms'; it must be 'layer'",
                "Model.activation is 'geglu'; it must be 'relu' or 'gelu' or",
                "Model.encoder_layers is 0; it must be at least 1",
                "Model.heads * Model.head_dim is 32; it must be Model.model_dim = 64",
            ],
        ),
        (
            {"experts": 4, "moe_every": 1, "routing": "switch", "expert_hidden_dim": 9},
            [
                "Model.routing is 'switch'; it must be 'top2'",
                "Model.expert_hidden_dim is 9; it must be 0",
            ],
        ),
    ],
)
def test_settings_that_the_layout_lacks_are_named(vocabulary, changes, lines):
    with pytest.raises(UserError) as error:
        layout_of(CONFIG.replace(model=changes), {"source": vocabulary, "target": vocabulary})
    told = str(error.value).splitlines()
    assert len(told) == len(lines) + 2
    for line, expected in zip(told[1:-1], lines, strict=True):
        assert line.strip().startswith(expected)
    assert "configs/models/m2m_100.gin has those" in told[-1]


def test_experts_may_name_the_width_of_the_dense_layers(vocabulary):
    model = {"experts": 4, "moe_place": "last", "expert_hidden_dim": CONFIG.model.hidden_dim}
    layout_of(CONFIG.replace(model=model), {"source": vocabulary, "target": vocabulary})


def test_an_output_bias_must_be_empty(vocabulary):
    config = CONFIG.replace(model={"output_bias": True})
    weights = weights_of(config.model, vocabulary.size)
    layout = layout_of(config, {"source": vocabulary, "target": vocabulary})
    weights["output_bias"] = np.array([NEVER] + [0.0] * (vocabulary.size - 1), np.float32)
    assert "final_logits_bias" not in tensors_of(layout, weights)
    weights["output_bias"][5] = 0.5
    with pytest.raises(UserError, match="output_bias is True and 1 of its values are not 0"):
        tensors_of(layout, weights)


def test_settings_have_the_names_and_values_of_transformers(tmp_path, vocabulary):
    config = EXPERTS.replace(
        model={"residual_dropout": 0.2, "attention_dropout": 0.1, "activation": "swish"},
        data={"source_length": 32, "target_length": 40},
        decode={"source_lengths": (8, 24)},
    )
    layout = layout_of(config, {"source": vocabulary, "target": vocabulary})
    write(layout, weights_of(config.model, vocabulary.size), tmp_path, never=[0, 2, 3, 9])
    content = json.loads((tmp_path / "config.json").read_text())
    expected = {
        "vocab_size": vocabulary.size, "encoder_layers": 4,
        "decoder_layers": config.model.decoder_layers, "encoder_attention_heads": config.model.heads,
        "activation_function": "swish", "dropout": 0.2, "attention_dropout": 0.1,
        "max_position_embeddings": 40, "encoder_sparse_step": 2, "decoder_sparse_step": 0,
        "router_bias": False, "second_expert_policy": "all", "dtype": "float32",
        "normalize_router_prob_before_dropping": False, "moe_eval_capacity_token_fraction": 1.0,
    }  # fmt: skip
    search = {
        "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0,
        "num_beams": 4, "max_length": 40, "bad_words_ids": [[1], [3], [0], [9]],
    }  # fmt: skip
    assert {name: content[name] for name in expected} == expected
    assert json.loads((tmp_path / "generation_config.json").read_text()) == search


@pytest.mark.parametrize("config", [CONFIG, EXPERTS], ids=["m2m_100", "nllb-moe"])
def test_an_export_of_our_own_model_is_read_back_to_the_bit(tmp_path, vocabulary, config):
    weights = weights_of(config.model, vocabulary.size)
    layout = layout_of(config, {"source": vocabulary, "target": vocabulary})
    write(layout, weights, tmp_path)
    contents = read_config(tmp_path)
    model = model_of(contents)
    back = Layout(contents, model, layout.orders)
    again = read_weights(back, Tensors(tmp_path), declare(config.model, *[vocabulary.size] * 2))
    for name, values in weights.items():
        np.testing.assert_array_equal(again[name], values)
    for setting in ("encoder_layers", "hidden_dim", "positions"):
        assert getattr(model, setting) == getattr(config.model, setting)
    if config is EXPERTS:
        for setting in ("experts", "moe_place", "expert_stacks"):
            assert getattr(model, setting) == getattr(config.model, setting)


def test_a_token_that_stands_twice_has_the_value_of_its_own_id():
    """Training moves the copy with which a translation begins away from the token."""
    layout = imported("m2m_100").layout
    rows = layout.orders["target"].rows
    values = np.arange(len(rows), dtype=np.float32)[:, np.newaxis] * np.ones(16, np.float32)
    (table,) = tensors_of(layout, {"target_embedding": values}).values()
    assert rows[3] == rows[1]
    factor = np.float32(np.sqrt(layout.model.model_dim))
    np.testing.assert_array_equal(table[rows[1]], values[1] / factor)


VALUES = np.array([[1.5, -2.0, 0.25]], np.float32)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.dtype("bfloat16")])
def test_every_dtype_is_read_as_float32(tmp_path, dtype):
    save_file({"a": VALUES.astype(dtype), "w": np.zeros(1, dtype)}, tmp_path / SINGLE)
    tensors = Tensors(tmp_path)
    values = tensors.read("a", (1, 3))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, VALUES)
    assert tensors.unread == {"w"}


def test_several_files_are_read_and_a_single_file_comes_before_them(tmp_path):
    for number, name in enumerate(("one", "two")):
        file = tmp_path / f"model-0000{number + 1}-of-00002.safetensors"
        write_tensors(file, {name: np.array([number])})
    tensors = Tensors(tmp_path)
    assert [tensors.read(name, (1,)).tolist() for name in ("one", "two")] == [[0.0], [1.0]]
    write_tensors(tmp_path / "model-00002-of-00003.safetensors", {"two": VALUES})
    with pytest.raises(UserError, match="has the tensor two in two files, so they are not of one"):
        Tensors(tmp_path)
    write_tensors(tmp_path / SINGLE, {"a": VALUES})
    assert Tensors(tmp_path).unread == {"a"}


def test_arrays_of_any_layout_are_written_as_float32_of_torch(tmp_path):
    arrays = {
        "a": VALUES.astype(np.float64),
        "transposed": np.arange(6, dtype=np.float16).reshape(2, 3).T,
    }
    write_tensors(tmp_path / SINGLE, arrays)
    assert b'"format":"pt"' in (tmp_path / SINGLE).read_bytes()
    tensors = Tensors(tmp_path)
    for name, values in arrays.items():
        np.testing.assert_array_equal(tensors.read(name, values.shape), values)


def test_a_tensor_that_cannot_be_read_is_named(tmp_path):
    nan = np.full((1, 3), np.nan, np.float16)
    save_file({"a": VALUES, "b": VALUES.astype(np.int8), "nan": nan}, tmp_path / SINGLE)
    tensors = Tensors(tmp_path)
    for name, shape, message in (
        ("c", (3,), "the tensor c is missing, so this is not the whole model"),
        ("a", (3,), r"is F32 \[1, 3\], but by config.json it must be floats \[3\]"),
        ("b", (1, 3), "the tensor b is I8"),
        ("nan", (1, 3), "the tensor nan has values that are not finite"),
    ):
        with pytest.raises(UserError, match=message):
            tensors.read(name, shape)


@pytest.mark.parametrize("content", [b"", b"\xff" * 20, struct.pack("<Q", 8) + b'{"a": 1}'])
def test_a_damaged_file_and_pickled_weights_are_refused(tmp_path, content):
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged: .* Copy the file again"):
        Tensors(tmp_path)
    (tmp_path / SINGLE).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="files of weights are not read"):
        Tensors(tmp_path)
