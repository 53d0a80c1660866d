"""A dense model as a folder of CTranslate2 (https://opennmt.net/CTranslate2), made with its own classes.

Beside its files are the SentencePiece models source.model and target.model, for the text before and
after. Our attention does not scale its logits, so `queries_scale` is 1. Our logits are products with
x * M**-0.5, which is `scale_outputs`.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt.data.text.vocabulary import BOS, EOS, UNK, Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.huggingface import check_settings
from gshard_nmt.model.attention import MAX_DISTANCE
from gshard_nmt.model.config import SINUSOIDS, Model
from gshard_nmt.model.layers import EPSILONS
from gshard_nmt.model.parameters import within

_ACTIVATIONS = {"relu": "RELU", "geglu": "GELUTanh", "swish": "SWISH", "gelu": "GELU"}
"""The names of CTranslate2's activations. "geglu" has the approximate GELU, as in T5."""
_POSITIONS = 1024
"""The least number of sinusoids in the file."""
_BANNED = -1e4
"""The bias of an id that is never written. float16 has this number."""


def check(model: Model) -> None:
    """Raises UserError if CTranslate2 is not installed, or does not have a part of the model."""
    check_settings(model, "CTranslate2")
    _specs()


def _specs() -> Any:
    try:
        return importlib.import_module("ctranslate2").specs
    except ImportError as error:
        raise UserError(
            f"--format ctranslate2 needs the package ctranslate2, which cannot be imported ({error}). "
            "Install it with: pip install 'gshard-nmt[ctranslate2]'"
        ) from None


def write(
    model: Model,
    weights: Mapping[str, np.ndarray],
    vocabularies: Mapping[str, Vocabulary],
    folder: Path,
    never: Sequence[int] = (),
    longest: int = 0,
) -> None:
    """Writes a model that passes `check` into an empty folder.

    A translation never has the ids of `never`: their logits get a bias. `longest` is the largest number
    of tokens of a sentence.
    """
    specs = _specs()
    spec = specs.TransformerSpec.from_config(
        (model.encoder_layers, model.decoder_layers),
        model.heads,
        pre_norm=model.norm_place == "before",
        activation=getattr(specs.Activation, _ACTIVATIONS[model.activation]),
        relative_attention_bias=model.positions == "relative",
        ffn_glu=model.activation == "geglu",
        rms_norm=model.norm == "rms",
    )
    (encoder,), decoder = spec.encoder.embeddings, spec.decoder.embeddings
    decoder.weight = weights["target_embedding"]
    encoder.weight = decoder.weight if model.shared_embedding else weights["source_embedding"]
    spec.decoder.projection.weight = decoder.weight
    spec.decoder.scale_outputs = np.float32(model.model_dim**-0.5)
    if len(never) or "output_bias" in weights:
        bias = np.zeros(len(decoder.weight), np.float32) + weights.get("output_bias", 0)
        bias[list(never)] = _BANNED
        spec.decoder.projection.bias = bias
    for side, name in (("source", "encoder"), ("target", "decoder")):
        stack, vocabulary = getattr(spec, name), vocabularies[side]
        stack.scale_embeddings = False
        if model.positions in SINUSOIDS:
            stack.position_encodings.encodings = _sinusoids(model, max(longest, _POSITIONS))
        elif model.positions == "learned":
            stack.position_encodings.encodings = weights[f"{side}_position_embedding"]
        if model.norm_place == "before":
            _set_norm(stack.layer_norm, within(weights, f"{name}/final_norm"))
        block = within(weights, f"{name}/block")
        for repeat, layer in enumerate(stack.layer):
            _set_layer(layer, {leaf: arrays[repeat] for leaf, arrays in block.items()})
        register = getattr(spec, f"register_{side}_vocabulary")
        register(vocabulary.pieces(range(vocabulary.size)))
        (folder / f"{side}.model").write_bytes(vocabulary.content)
    unk, bos, eos = vocabularies["target"].pieces([UNK, BOS, EOS])
    spec.config.unk_token, spec.config.eos_token = unk, eos
    spec.config.bos_token = spec.config.decoder_start_token = bos
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = EPSILONS[model.norm]
    spec.validate()
    spec.optimize()
    spec.save(str(folder))


_Weights = dict[str, np.ndarray]


def _set_layer(layer: Any, weights: _Weights) -> None:
    own = within(weights, "self_attention_0")
    _set_attention(layer.self_attention, own, [("query", "key", "value"), ("output",)])
    if "relative_bias" in own:
        # [N, buckets] -> [buckets, N]
        layer.self_attention.relative_attention_bias = own["relative_bias"].T
        layer.self_attention.relative_attention_max_distance = np.int32(MAX_DISTANCE)
    if cross := within(weights, "cross_attention_0"):
        _set_attention(layer.attention, cross, [("query",), ("key", "value"), ("output",)])
    dense = within(weights, "feed_forward_0")
    _set_linear(layer.ffn.linear_0, dense, "wi")
    if "wi_linear" in dense:
        _set_linear(layer.ffn.linear_0_noact, dense, "wi_linear")
    _set_linear(layer.ffn.linear_1, dense, "wo")
    _set_norm(layer.ffn.layer_norm, within(dense, "norm"))


def _set_attention(spec: Any, weights: _Weights, linears: Sequence[Sequence[str]]) -> None:
    for linear, leaves in zip(spec.linear, linears, strict=True):
        _set_linear(linear, weights, *leaves)
    _set_norm(spec.layer_norm, within(weights, "norm"))
    spec.queries_scale = np.float32(1)


def _set_norm(spec: Any, weights: _Weights) -> None:
    spec.gamma = weights["scale"]
    if "bias" in weights:
        spec.beta = weights["bias"]


def _set_linear(spec: Any, weights: _Weights, *leaves: str) -> None:
    """Sets a linear layer, [outputs, inputs], that joins several of ours."""
    matrices, biases = [], []
    for leaf in leaves:
        matrix, bias = weights[leaf], weights.get(f"{leaf}_bias")
        rows = -1 if leaf == "output" else len(matrix)  # an output is [N, D, M], others [M, ...]
        columns = matrix.shape[-1] if leaf == "output" else -1
        matrices.append(matrix.reshape(rows, columns).T)
        biases += [] if bias is None else [bias.reshape(-1)]
    spec.weight = np.concatenate(matrices)
    if biases:
        spec.bias = np.concatenate(biases)


def _sinusoids(model: Model, count: int) -> np.ndarray:
    """Returns the sinusoids of the first positions, float32[positions, M]; see `layers.sinusoids`."""
    half = model.model_dim // 2
    steps = max(half - 1, 1) if model.positions == "sinusoidal" else half
    exponents = np.arange(half, dtype=np.float32) * np.array(-np.log(10_000.0) / steps, np.float32)
    positions = np.arange(count, dtype=np.float32) + model.position_offset
    angles = positions[:, np.newaxis] * np.exp(exponents)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1, dtype=np.float32)
