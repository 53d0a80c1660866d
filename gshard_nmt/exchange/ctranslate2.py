"""A dense model as a folder of CTranslate2 (https://opennmt.net/CTranslate2).

We write the files ourselves, so neither CTranslate2 nor torch is needed to export a model:

    model.bin                 settings and weights: version 6 of the file format, revision 7 of
                              "TransformerSpec"; its converters write the same
    config.json               the special tokens and the epsilon of the norms
    source_vocabulary.json    the pieces of the source, in the order of their ids
    target_vocabulary.json    the same for the target
    source.model, target.model    the SentencePiece models, for the text before and after

Our attention does not scale its logits, so `queries_scale` is 1. Our logits are products with
x * M**-0.5, which is `scale_outputs`.
"""

import dataclasses
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from gshard_nmt.data.text.vocabulary import BOS, EOS, UNK, Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.model.attention import MAX_DISTANCE
from gshard_nmt.model.config import SINUSOIDS, Model
from gshard_nmt.model.layers import EPSILONS

FILES = (
    *("model.bin", "config.json", "source_vocabulary.json", "target_vocabulary.json"),
    *("source.model", "target.model"),
)
"""The files that `write` makes."""

_FORMAT, _REVISION = 6, 7
_DTYPES = ("float32", "int8", "int16", "int32")
"""The dtypes in the order of their numbers in a file."""
_ACTIVATIONS = {"relu": 0, "geglu": 1, "swish": 2, "gelu": 3}
"""The numbers of CTranslate2's activations. "geglu" has the approximate GELU, as in T5."""
_POSITIONS = 1024
"""The least number of sinusoids in the file."""
_BANNED = -1e4
"""The bias of an id that is never written. float16 has this number."""


def check(model: Model) -> None:
    """Checks that CTranslate2 has all parts of a model.

    Raises:
      UserError: it does not have one of them.
    """
    if model.experts:
        raise UserError(
            f"Model.experts is {model.experts}; it must be 0 for --format ctranslate2, as CTranslate2 "
            "has no such experts. Export another format, or train a dense student on the translations "
            "of this model (configs/experiments/student.gin)."
        )
    if not model.encoder_layers:
        raise UserError(
            "Model.encoder_layers is 0; it must be at least 1 for --format ctranslate2, which translates "
            "with an encoder and a decoder. Export another model."
        )
    if model.heads * model.head_dim != model.model_dim:
        raise UserError(
            f"Model.heads * Model.head_dim is {model.heads * model.head_dim}; it must be Model.model_dim "
            f"= {model.model_dim} for --format ctranslate2. Export another format."
        )


def write(
    model: Model,
    weights: Mapping[str, np.ndarray],
    vocabularies: Mapping[str, Vocabulary],
    folder: Path,
    never: Sequence[int] = (),
    longest: int = 0,
) -> None:
    """Writes a model into a folder.

    Args:
      model: its settings.
      weights: its parameters by name.
      vocabularies: those of "source" and "target".
      folder: an empty folder.
      never: the ids that a translation never has. Their logits get a bias.
      longest: the largest number of tokens of a sentence.

    Raises:
      UserError: see `check`.
    """
    check(model)
    if len(never):
        bias = np.zeros(vocabularies["target"].size, np.float32) + weights.get("output_bias", 0)
        bias[list(never)] = _BANNED
        weights = {**weights, "output_bias": bias}
    variables, aliases = variables_of(model, weights, longest)
    with (folder / "model.bin").open("wb") as file:
        _write_binary(file, variables, aliases)
    for side, vocabulary in vocabularies.items():
        pieces = vocabulary.pieces(range(vocabulary.size))
        _write_json(folder / f"{side}_vocabulary.json", pieces)
        (folder / f"{side}.model").write_bytes(vocabulary.content)
    unk, bos, eos = vocabularies["target"].pieces([UNK, BOS, EOS])
    config = {
        "unk_token": unk,
        "bos_token": bos,
        "eos_token": eos,
        "decoder_start_token": bos,
        "add_source_bos": False,
        "add_source_eos": True,
        "layer_norm_epsilon": EPSILONS[model.norm],
        "multi_query_attention": False,
    }
    _write_json(folder / "config.json", config)


def variables_of(
    model: Model, weights: Mapping[str, np.ndarray], longest: int = 0
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the variables of model.bin by name, and names that stand for another variable."""
    variables: dict[str, np.ndarray] = {}
    for stack, side, embedding in (
        ("encoder", "source", "encoder/embeddings_0"),
        ("decoder", "target", "decoder/embeddings"),
    ):
        name = "target_embedding" if model.shared_embedding else f"{side}_embedding"
        variables |= {
            f"{embedding}/weight": weights[name],
            f"{stack}/num_heads": np.array(model.heads, np.int16),
            f"{stack}/pre_norm": np.array(model.norm_place == "before", np.int8),
            f"{stack}/activation": np.array(_ACTIVATIONS[model.activation], np.int8),
            f"{stack}/scale_embeddings": np.array(0, np.int8),
        }
        if model.positions in SINUSOIDS:
            variables[f"{stack}/position_encodings/encodings"] = _sinusoids(
                model, max(longest, _POSITIONS)
            )
        elif model.positions == "learned":
            variables[f"{stack}/position_encodings/encodings"] = weights[
                f"{side}_position_embedding"
            ]
        if model.norm_place == "before":
            norm = _Sublayer(weights, f"{stack}/final_norm", None)
            variables |= norm.norm(f"{stack}/layer_norm")
        for layer in range(model.depth(stack)):
            variables |= _layer(stack, weights, layer)
    variables |= {
        "encoder/embeddings_merge": np.array(0, np.int8),
        "encoder/multi_query_attention": np.array(0, np.int8),
        "decoder/alignment_layer": np.array(-1, np.int16),
        "decoder/alignment_heads": np.array(1, np.int16),
        "decoder/scale_outputs": np.array(model.model_dim**-0.5, np.float32),
    }
    if "output_bias" in weights:
        variables["decoder/projection/bias"] = weights["output_bias"]
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    if model.shared_embedding:
        del variables["encoder/embeddings_0/weight"]
        aliases["encoder/embeddings_0/weight"] = "decoder/embeddings/weight"
    arrays = {
        name: array if array.dtype.name in _DTYPES else array.astype(np.float32)
        for name, array in ((name, np.asarray(value)) for name, value in variables.items())
    }
    return arrays, aliases


@dataclasses.dataclass(frozen=True)
class _Sublayer:
    """The weights of a sub-layer.

    Attributes:
      weights: all weights by name.
      name: the beginning of the names of this sub-layer's weights.
      repeat: the block of the stack; None for weights without the dimension R.
    """

    weights: Mapping[str, np.ndarray]
    name: str
    repeat: int | None

    def __contains__(self, leaf: str) -> bool:
        return f"{self.name}/{leaf}" in self.weights

    def __getitem__(self, leaf: str) -> np.ndarray:
        array = np.asarray(self.weights[f"{self.name}/{leaf}"], np.float32)
        return array if self.repeat is None else array[self.repeat]

    def norm(self, place: str, prefix: str = "") -> dict[str, np.ndarray]:
        """Returns the variables of a norm."""
        norm = {f"{place}/gamma": self[f"{prefix}scale"]}
        if f"{prefix}bias" in self:
            norm[f"{place}/beta"] = self[f"{prefix}bias"]
        return norm

    def linear(self, place: str, *leaves: str) -> dict[str, np.ndarray]:
        """Returns the variables of a linear layer, [outputs, inputs], that joins several of ours."""
        matrices, biases = [], []
        for leaf in leaves:
            matrix = self[leaf]
            inputs = 2 if leaf == "output" else 1
            rows = int(np.prod(matrix.shape[:inputs]))
            matrices.append(matrix.reshape(rows, -1).T)
            if f"{leaf}_bias" in self:
                biases.append(self[f"{leaf}_bias"].reshape(-1))
        linear = {f"{place}/weight": np.concatenate(matrices)}
        return linear | ({f"{place}/bias": np.concatenate(biases)} if biases else {})


def _layer(stack: str, weights: Mapping[str, np.ndarray], layer: int) -> dict[str, np.ndarray]:
    """Returns the variables of one layer."""
    place = f"{stack}/layer_{layer}"
    own = _Sublayer(weights, f"{stack}/block/self_attention_0", layer)
    attention = f"{place}/self_attention"
    variables = own.linear(f"{attention}/linear_0", "query", "key", "value")
    variables |= own.linear(f"{attention}/linear_1", "output")
    variables |= own.norm(f"{attention}/layer_norm", "norm/")
    variables[f"{attention}/queries_scale"] = np.array(1, np.float32)
    if "relative_bias" in own:
        # [N, buckets] -> [buckets, N]
        variables[f"{attention}/relative_attention_bias"] = own["relative_bias"].T
        variables[f"{attention}/relative_attention_max_distance"] = np.array(MAX_DISTANCE, np.int32)
    if stack == "decoder":
        cross = _Sublayer(weights, f"{stack}/block/cross_attention_0", layer)
        attention = f"{place}/attention"
        variables |= cross.linear(f"{attention}/linear_0", "query")
        variables |= cross.linear(f"{attention}/linear_1", "key", "value")
        variables |= cross.linear(f"{attention}/linear_2", "output")
        variables |= cross.norm(f"{attention}/layer_norm", "norm/")
        variables[f"{attention}/queries_scale"] = np.array(1, np.float32)
    dense = _Sublayer(weights, f"{stack}/block/feed_forward_0", layer)
    variables |= dense.linear(f"{place}/ffn/linear_0", "wi")
    if "wi_linear" in dense:
        variables |= dense.linear(f"{place}/ffn/linear_0_noact", "wi_linear")
    variables |= dense.linear(f"{place}/ffn/linear_1", "wo")
    return variables | dense.norm(f"{place}/ffn/layer_norm", "norm/")


def _sinusoids(model: Model, count: int) -> np.ndarray:
    """Returns the sinusoids of the first positions, float32[positions, M]; see `layers.sinusoids`."""
    half = model.model_dim // 2
    steps = max(half - 1, 1) if model.positions == "sinusoidal" else half
    exponents = np.arange(half, dtype=np.float32) * np.array(-np.log(10_000.0) / steps, np.float32)
    positions = np.arange(count, dtype=np.float32) + model.position_offset
    angles = positions[:, np.newaxis] * np.exp(exponents)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1, dtype=np.float32)


def _write_binary(
    file: IO[bytes], variables: Mapping[str, np.ndarray], aliases: Mapping[str, str]
) -> None:
    """Writes model.bin; all numbers are little-endian."""

    def write_text(text: str) -> None:
        content = text.encode() + b"\0"
        file.write(struct.pack("<H", len(content)) + content)

    file.write(struct.pack("<I", _FORMAT))
    write_text("TransformerSpec")
    file.write(struct.pack("<II", _REVISION, len(variables)))
    for name, array in sorted(variables.items()):
        write_text(name)
        file.write(struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape))
        file.write(struct.pack("<BI", _DTYPES.index(array.dtype.name), array.nbytes))
        file.write(array.astype(array.dtype.newbyteorder("<")).tobytes())
    file.write(struct.pack("<I", len(aliases)))
    for alias, name in sorted(aliases.items()):
        write_text(alias)
        write_text(name)


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
