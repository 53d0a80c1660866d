"""The models of Hugging Face folders that gshard-import reads, as settings and weights of our own.

M2M-100 and NLLB-200 (model_type m2m_100), NLLB-MoE (nllb-moe) and Marian's OPUS-MT (marian) differ from
our own models only in settings of `Model`. Some constants of theirs become part of the weights:

- Our attention does not multiply its logits by D**-0.5, so the query has this factor.
- Our logits are products with x * M**-0.5, so the embedding has the factor M**0.5. Their encoders and
  decoders multiply the embedding by the same factor, and ours do not. If theirs do not either
  (`scale_embedding`), the norm that ends the decoder has it instead, and the embedding has none.
- NLLB-MoE multiplies the outputs of experts by 1 - moe_token_dropout after training.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import json_shape
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.foreign_vocabulary import NEVER, Order
from gshard_nmt.exchange.tensors import Tensors
from gshard_nmt.json_shape import anything, fields, number, text, whole
from gshard_nmt.model.config import Model
from gshard_nmt.model.parameters import Parameter
from gshard_nmt.ranges import LARGEST_SIZE

CONFIG = "config.json"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}

_SIZE = whole(1, LARGEST_SIZE)
_SIZES = (
    "vocab_size",
    "d_model",
    *[
        f"{side}_{name}"
        for side in ("encoder", "decoder")
        for name in ("layers", "ffn_dim", "attention_heads")
    ],
)
_CONFIG = fields(
    {"model_type": text("m2m_100|nllb-moe|marian"), **dict.fromkeys(_SIZES, _SIZE)},
    {
        **dict.fromkeys(("pad_token_id", "eos_token_id", "decoder_start_token_id"), whole()),
        **dict.fromkeys(("encoder_sparse_step", "decoder_sparse_step", "num_experts"), whole()),
        **dict.fromkeys(("dropout", "attention_dropout", "moe_token_dropout"), number()),
        "activation_function": text(),
        "decoder_vocab_size": _SIZE,
        "max_position_embeddings": _SIZE,
    },
)


@dataclasses.dataclass(frozen=True)
class Family:
    """How a family names its tensors, and its settings that config.json does not have.

    Attributes:
      settings: settings of `Model`.
      defaults: keys that config.json may leave out, with their values.
      names: the names of the parts of a layer, by our names.
      unread: words in the names of tensors that hold nothing we need.
    """

    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]
    names: Mapping[str, str]
    unread: tuple[str, ...] = ("embed_positions", "embed_tokens", "lm_head")


_FAIRSEQ = {"positions": "sinusoidal", "norm": "layer", "biases": True, "output_bias": True}
_ATTENTIONS = {
    "self_attention": "self_attn",
    "self_attention/norm": "self_attn_layer_norm",
    "cross_attention": "encoder_attn",
    "cross_attention/norm": "encoder_attn_layer_norm",
}
_DENSE = {"feed_forward": "", "feed_forward/norm": "final_layer_norm"}
_MOE = {
    "cross_attention": "cross_attention",
    "cross_attention/norm": "cross_attention_layer_norm",
    "feed_forward": "ffn.",
    "feed_forward/norm": "ff_layer_norm",
    "moe": "ffn.",
    "moe/norm": "ff_layer_norm",
}
_START = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}

FAMILIES: Mapping[str, Family] = {
    "m2m_100": Family(_FAIRSEQ, _START, _ATTENTIONS | _DENSE),
    "nllb-moe": Family(
        {**_FAIRSEQ, "moe_place": "last"},
        _START | {"encoder_sparse_step": 4, "decoder_sparse_step": 4, "num_experts": 128}
        | {"moe_token_dropout": 0.2},
        _ATTENTIONS | _MOE,
    ),
    "marian": Family(
        {**_FAIRSEQ, "positions": "vaswani", "norm_place": "after"},
        {"pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100}
        | {"activation_function": "gelu"},
        _ATTENTIONS | _DENSE,
    ),
}  # fmt: skip
"""The families by their `model_type`. The defaults are those of transformers."""


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the content of config.json, with the defaults of the family.

    Raises:
      UserError: the file is missing, or the model is none that can be read.
    """
    file = folder / CONFIG
    if not file.is_file():
        raise UserError(
            f"--from {folder} has no {CONFIG}; give the folder of a Hugging Face model, with {CONFIG}, "
            "safetensors and the files of the tokenizer."
        )
    remedy = "Copy the file again from where the model was published."
    kind = json_shape.read(file, fields({"model_type": text()}), remedy)["model_type"]
    if kind not in FAMILIES:
        raise UserError(
            f"--from {folder} is a model of the type {kind!r}; it must be one of {', '.join(FAMILIES)}. "
            "Choose a model of M2M-100, NLLB-200, NLLB-MoE or OPUS-MT."
        )
    content: Any = json_shape.read(file, json_shape.mapping_of(anything()), remedy)
    # transformers writes null for a value that it does not use.
    content = {name: value for name, value in content.items() if value is not None}
    defaults = {"activation_function": "relu", "dropout": 0.1, "attention_dropout": 0.0}
    content = {**defaults, **FAMILIES[kind].defaults, **content}
    if problem := json_shape.problem(_CONFIG, content):
        raise UserError(f"{file} is damaged: {problem}. {remedy}")
    return dict(content)


def model_of(config: Mapping[str, Any]) -> Model:
    """Returns the settings of the model that config.json describes.

    Raises:
      UserError: the model has a part that our Transformer does not have.
    """
    for name, ours in (("ffn_dim", "hidden_dim"), ("attention_heads", "heads")):
        both = [config[f"{side}_{name}"] for side in ("encoder", "decoder")]
        if both[0] != both[1]:
            raise _unsupported(
                f"encoder_{name} is {both[0]} and decoder_{name} {both[1]}",
                f"equal, as both are Model.{ours}",
            )
    if config["d_model"] % config["encoder_attention_heads"]:
        raise _unsupported(
            f"d_model is {config['d_model']}",
            f"a multiple of the {config['encoder_attention_heads']} attention heads",
        )
    if config["activation_function"] not in ACTIVATIONS:
        raise _unsupported(
            f"activation_function is {config['activation_function']!r}",
            f"one of {', '.join(ACTIVATIONS)}",
        )
    if config.get("tie_word_embeddings") is False:
        raise _unsupported(
            "tie_word_embeddings is false", "true, as the logits use the target embedding"
        )
    is_scaled = config.get("scale_embedding", config["model_type"] != "marian")
    if not is_scaled and config["model_type"] == "marian":
        raise _unsupported("scale_embedding is false", "true in a Marian model")
    if config.get("router_bias"):
        raise _unsupported("router_bias is true", "false, as our gate has no bias")
    family = FAMILIES[config["model_type"]]
    offset = config["pad_token_id"] + 1 if family.settings["positions"] == "sinusoidal" else 0
    return Model(
        encoder_layers=config["encoder_layers"],
        decoder_layers=config["decoder_layers"],
        model_dim=config["d_model"],
        hidden_dim=config["encoder_ffn_dim"],
        heads=config["encoder_attention_heads"],
        head_dim=config["d_model"] // config["encoder_attention_heads"],
        activation=ACTIVATIONS[config["activation_function"]],
        shared_embedding=config.get("share_encoder_decoder_embeddings", True),
        position_offset=offset,
        input_dropout=config["dropout"],
        residual_dropout=config["dropout"],
        attention_dropout=config["attention_dropout"],
        **_experts(config),
        **family.settings,
    )


def _experts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the experts; experts = 0 for a dense model."""
    steps = {side: config.get(f"{side}_sparse_step", 0) for side in ("encoder", "decoder")}
    sparse = [side for side, step in steps.items() if step and config["model_type"] == "nllb-moe"]
    if not sparse:
        return {"experts": 0}
    if len(sparse) == 2 and steps["encoder"] != steps["decoder"]:
        raise _unsupported(
            f"encoder_sparse_step is {steps['encoder']} and decoder_sparse_step {steps['decoder']}",
            "equal, as both are Model.moe_every",
        )
    for side in sparse:
        if config[f"{side}_layers"] % steps[side]:
            raise _unsupported(
                f"{side}_layers is {config[f'{side}_layers']}",
                f"a multiple of {side}_sparse_step = {steps[side]}, as our stacks are equal blocks",
            )
    return {
        "experts": config["num_experts"],
        "moe_every": steps[sparse[0]],
        "expert_stacks": "both" if len(sparse) == 2 else sparse[0],
        # Evaluation drops no choice: an expert has a slot for each token.
        "eval_capacity_factor": float(config["num_experts"]),
    }


def _unsupported(what: str, allowed: str) -> UserError:
    return UserError(f"in {CONFIG} {what}; it must be {allowed}. Choose another model.")


@dataclasses.dataclass(frozen=True)
class Source:
    """The weights of a folder, and what is needed to read them as ours.

    Attributes:
      config: the content of config.json.
      model: the settings of our model.
      tensors: the tensors of the folder.
      orders: the vocabulary of each side, "source" and "target".
    """

    config: Mapping[str, Any]
    model: Model
    tensors: Tensors
    orders: Mapping[str, Order]

    def weight(self, name: str, parameter: Parameter) -> np.ndarray:
        """Returns one of our parameters, float32 of its declared shape.

        Raises:
          UserError: a tensor is missing, or has another shape.
        """
        if name.endswith("_embedding"):
            return self._embedding(name.removesuffix("_embedding"))
        if name == "output_bias":
            return self._output_bias()
        stack, _, place = name.partition("/")
        if place.startswith("final_norm/"):
            leaf = place.rpartition("/")[2]
            values = self._norm(f"model.{stack}.layer_norm", leaf, parameter.shape)
            return values if stack == "encoder" else values * self._final_scale
        sublayer, _, leaf = place.removeprefix("block/").partition("/")
        kind, _, layer = sublayer.rpartition("_")
        every = self.model.block_layers(stack)
        shape = parameter.shape[1:]
        layers = [
            self._in_layer(
                f"model.{stack}.layers.{repeat * every + int(layer)}.", kind, leaf, shape
            )
            for repeat in range(parameter.shape[0])
        ]
        return np.stack(layers)

    def leftovers(self) -> list[str]:
        """Returns the names of the tensors that no parameter was made of, sorted."""
        unread = FAMILIES[self.config["model_type"]].unread
        return sorted(
            name
            for name in self.tensors.unread
            if not any(word in name.split(".") for word in unread)
        )

    @property
    def _is_scaled(self) -> bool:
        return bool(self.config.get("scale_embedding", True))

    @property
    def _final_scale(self) -> float:
        """The factor of the norm that ends the decoder."""
        return 1.0 if self._is_scaled else math.sqrt(self.model.model_dim)

    def _embedding(self, side: str) -> np.ndarray:
        stack = {"source": "encoder", "target": "decoder"}[side]
        own, shared = f"model.{stack}.embed_tokens.weight", "model.shared.weight"
        # Equal tensors are stored once, under one of their names.
        others = (
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "lm_head.weight",
        )
        names = (
            (shared, *others)
            if self.model.shared_embedding
            else (own, "lm_head.weight")[: 1 + (side == "target")]
        )
        name = next((name for name in names if name in self.tensors), names[0])
        size = self.config["vocab_size"]
        if side == "target" and not self.model.shared_embedding:
            size = self.config.get("decoder_vocab_size", size)
        table = self.tensors.read(name, (size, self.model.model_dim))
        factor = math.sqrt(self.model.model_dim) if self._is_scaled else 1.0
        return table[self.orders[side].rows] * np.float32(factor)

    def _output_bias(self) -> np.ndarray:
        order = self.orders["target"]
        bias = np.zeros(len(order.rows), np.float32)
        if "final_logits_bias" in self.tensors:
            size = int(order.rows.max()) + 1
            bias = self.tensors.read("final_logits_bias", (1, size))[0][order.rows]
        bias[list(order.never)] = NEVER
        return bias

    def _norm(self, prefix: str, leaf: str, shape: tuple[int, ...]) -> np.ndarray:
        return self.tensors.read(f"{prefix}.{'weight' if leaf == 'scale' else 'bias'}", shape)

    def _in_layer(self, prefix: str, kind: str, leaf: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a parameter of one layer, without the dimension R."""
        names = FAMILIES[self.config["model_type"]].names
        if leaf.startswith("norm/"):
            return self._norm(prefix + names[f"{kind}/norm"], leaf.removeprefix("norm/"), shape)
        if kind == "feed_forward":
            return self._matrix(
                f"{prefix}{names[kind]}{LINEAR[leaf.removesuffix('_bias')]}", leaf, shape
            )
        if kind != "moe":
            projection = f"{names[kind]}.{LINEAR[leaf.removesuffix('_bias')]}"
            values = self._matrix(prefix + projection, leaf, shape)
            is_query = leaf.startswith("query")
            return values * np.float32(self.model.head_dim**-0.5) if is_query else values
        if leaf == "gate":
            return self._matrix(f"{prefix}{names[kind]}router.classifier", leaf, shape)
        experts = [
            self._matrix(
                f"{prefix}{names[kind]}experts.expert_{e}.{LINEAR[leaf.removesuffix('_bias')]}",
                leaf,
                shape[1:],
            )
            for e in range(shape[0])
        ]
        kept = 1.0 - self.config["moe_token_dropout"] if leaf.startswith("wo") else 1.0
        return np.stack(experts) * np.float32(kept)

    def _matrix(self, prefix: str, leaf: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a matrix, which torch stores as [outputs, inputs], or a bias, in our shape."""
        if leaf.endswith("_bias"):
            return self.tensors.read(f"{prefix}.bias", (math.prod(shape),)).reshape(shape)
        inputs = 2 if leaf == "output" else 1
        rows, columns = math.prod(shape[:inputs]), math.prod(shape[inputs:])
        return self.tensors.read(f"{prefix}.weight", (columns, rows)).T.reshape(shape)


LINEAR = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "out_proj",
    "wi": "fc1",
    "wo": "fc2",
}
"""The linear layers of torch, by the names of our matrices."""
