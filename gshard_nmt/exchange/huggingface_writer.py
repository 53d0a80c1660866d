"""Our models as Hugging Face folders: the way back of `huggingface.py`.

A model that was imported goes back into the layout, the ids and the tokenizer files that it came with.
A model that was trained here gets the layout of M2M-100, or that of NLLB-MoE if it has experts.
transformers counts positions from the id of PAD, so the special ids move; all other ids stay:

    token      BOS   PAD   EOS   UNK
    our id     3     0     1     2
    new id     0     1     2     3
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import json_shape
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.foreign_vocabulary import NEVER, Order
from gshard_nmt.exchange.generation import GENERATION
from gshard_nmt.exchange.huggingface import ACTIVATIONS, CONFIG, FAMILIES, LINEAR
from gshard_nmt.exchange.huggingface_tokenizer import Tokenizer
from gshard_nmt.exchange.tensors import SINGLE
from gshard_nmt.exchange.tensors import write as write_tensors
from gshard_nmt.json_shape import fields, list_of, text, whole
from gshard_nmt.model.config import Model
from gshard_nmt.settings.config import Config

NEW_IDS = (1, 2, 3, 0)
"""The new ids of PAD, EOS, UNK and BOS."""
FACTS = "gshard_nmt.json"
"""The file of an export that says which model it has."""
SIDES = {"source": "source.model", "target": "target.model"}
"""The SentencePiece model files of a model that was trained here."""

_FACTS = fields(
    {"directions": list_of(list_of(text(), least=2), least=1), "never": list_of(whole())}
)

_LAYOUT = {
    "norm": ("layer",),
    "norm_place": ("before",),
    "biases": (True,),
    "shared_embedding": (True,),
    "positions": ("sinusoidal",),
    # transformers counts positions from the id of PAD, which is 1, plus 1.
    "position_offset": (2,),
    "activation": ("relu", "gelu", "swish"),
}
"""The values that settings of `Model` have in M2M-100."""
_EXPERTS = {
    "moe_place": ("last",),
    "routing": ("top2",),
    "eval_second_expert": ("all",),
    "shared_expert_dim": (0,),
}
"""The same for the experts of NLLB-MoE."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A model in the layout of a family of transformers.

    Attributes:
      config: the content of config.json, with the defaults of the family.
      model: the settings of our model.
      orders: the vocabulary of each side, "source" and "target", with the new ids in `rows`.
    """

    config: Mapping[str, Any]
    model: Model
    orders: Mapping[str, Order]

    @property
    def is_scaled(self) -> bool:
        """Whether the model multiplies its embeddings by M**0.5."""
        return bool(self.config.get("scale_embedding", True))


def own_tokenizer(folder: Path) -> Tokenizer | None:
    """Returns the vocabularies and directions of a folder that `gshard-export` wrote, else None.

    An imported model is exported with the tokenizer files of its family, so this is None for it too.

    Raises:
      UserError: a file is missing or damaged.
    """
    if not (folder / FACTS).is_file() or not (folder / SIDES["target"]).is_file():
        return None
    facts = json_shape.read(folder / FACTS, _FACTS, "Export the model again.")
    orders = {
        side: own_order(Vocabulary.load(folder / file), facts["never"])
        for side, file in SIDES.items()
    }
    return Tokenizer(orders, [(pair[0], pair[1]) for pair in facts["directions"]])


def own_order(vocabulary: Vocabulary, never: Sequence[int] = ()) -> Order:
    """Returns the ids of a vocabulary that was made here, in the order of transformers."""
    rows = np.array([*NEW_IDS, *range(len(NEW_IDS), vocabulary.size)], np.int32)
    return Order(vocabulary.content, rows, never)


def layout_of(config: Config, vocabularies: Mapping[str, Vocabulary]) -> Layout:
    """Returns the layout of a model that was trained here.

    Args:
      config: the run.
      vocabularies: those of "source" and "target".

    Raises:
      UserError: the model has a part that the layout does not have. The message names each setting.
    """
    model = config.model
    _check_settings(model)
    orders = {side: own_order(vocabulary) for side, vocabulary in vocabularies.items()}
    lengths = (config.data.source_length, config.data.target_length, *config.decode.source_lengths)
    stacks = {
        f"{stack}_{name}": value
        for stack in ("encoder", "decoder")
        for name, value in (
            ("layers", model.depth(stack)),
            ("ffn_dim", model.hidden_dim),
            ("attention_heads", model.heads),
        )
    }
    kind = "nllb-moe" if model.experts else "m2m_100"
    architecture = {"m2m_100": "M2M100", "nllb-moe": "NllbMoe"}[kind]
    content = {
        "architectures": [f"{architecture}ForConditionalGeneration"],
        "model_type": kind,
        "vocab_size": len(orders["target"].rows),
        "d_model": model.model_dim,
        **stacks,
        **(_experts(model) if model.experts else {}),
        "activation_function": {ours: name for name, ours in reversed(ACTIVATIONS.items())}[
            model.activation
        ],
        "dropout": model.residual_dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "scale_embedding": True,
        "tie_word_embeddings": True,
        "max_position_embeddings": max(lengths),
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 0,
    }
    return Layout(content, model, orders)


def _check_settings(model: Model) -> None:
    """Raises UserError if the settings are not those of the layout."""
    name = "NLLB-MoE" if model.experts else "M2M-100"
    allowed = _LAYOUT | (_EXPERTS if model.experts else {})
    wrong = [
        f"Model.{setting} is {getattr(model, setting)!r}; it must be {' or '.join(map(repr, values))}"
        for setting, values in allowed.items()
        if getattr(model, setting) not in values
    ]
    if not model.encoder_layers:
        wrong.append("Model.encoder_layers is 0; it must be at least 1")
    if model.heads * model.head_dim != model.model_dim:
        wrong.append(
            f"Model.heads * Model.head_dim is {model.heads * model.head_dim}; it must be "
            f"Model.model_dim = {model.model_dim}"
        )
    if model.experts and model.expert_hidden_dim not in (0, model.hidden_dim):
        wrong.append(
            f"Model.expert_hidden_dim is {model.expert_hidden_dim}; it must be Model.hidden_dim = "
            f"{model.hidden_dim}"
        )
    if wrong:
        lines = "".join(f"\n  {line}" for line in wrong)
        raise UserError(
            f"the model does not have the layout of {name} in transformers:{lines}\nTrain a model with "
            "these settings (configs/models/m2m_100.gin has them), or choose --format savedmodel."
        )


def _experts(model: Model) -> dict[str, Any]:
    """Returns the settings of the experts of NLLB-MoE."""
    steps = {
        f"{stack}_sparse_step": model.moe_every if model.has_experts(stack) else 0
        for stack in ("encoder", "decoder")
    }
    return {
        **steps,
        "num_experts": model.experts,
        "router_bias": False,
        "router_dtype": "float32",
        "second_expert_policy": "all",
        "normalize_router_prob_before_dropping": False,
        "moe_token_dropout": 0.0,
        # Each expert has a slot for each token.
        "moe_eval_capacity_token_fraction": 1.0,
    }


def tensors_of(layout: Layout, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors of a Hugging Face folder by name, float32.

    Args:
      layout: the layout.
      weights: our parameters by name.

    Raises:
      UserError: the output bias has values, and the family has none.
    """
    tensors: dict[str, np.ndarray] = {}
    for name, array in weights.items():
        values = np.asarray(array, np.float32)
        stack, _, place = name.partition("/")
        if name.endswith("_embedding"):
            tensors[_embedding_name(layout, name)] = _table(
                layout, name.removesuffix("_embedding"), values
            )
        elif name == "output_bias":
            tensors |= _output_bias(layout, values)
        elif place.startswith("final_norm/"):
            is_scaled = stack == "encoder" or layout.is_scaled
            factor = 1.0 if is_scaled else math.sqrt(layout.model.model_dim)
            leaf = _norm_leaf(place.rpartition("/")[2])
            tensors[f"model.{stack}.layer_norm.{leaf}"] = values / np.float32(factor)
        else:
            sublayer, _, leaf = place.removeprefix("block/").partition("/")
            kind, _, layer = sublayer.rpartition("_")
            every = layout.model.block_layers(stack)
            for repeat, part in enumerate(values):
                prefix = f"model.{stack}.layers.{repeat * every + int(layer)}."
                tensors |= _in_layer(layout, prefix, kind, leaf, part)
    return tensors


def _embedding_name(layout: Layout, name: str) -> str:
    if layout.model.shared_embedding:
        return "model.shared.weight"
    stack = {"source": "encoder", "target": "decoder"}[name.removesuffix("_embedding")]
    return f"model.{stack}.embed_tokens.weight"


def _in_new_order(layout: Layout, side: str, values: np.ndarray, size: int) -> np.ndarray:
    """Returns values [V, ...] of our ids in the order of the new ids, [size, ...]."""
    moved = np.zeros((size, *values.shape[1:]), np.float32)
    # A token has a lower id than its copies, so its value is written last.
    moved[layout.orders[side].rows[::-1]] = values[::-1]
    return moved


def _size(layout: Layout, side: str) -> int:
    """Returns the number of new ids of a side."""
    size = int(layout.config["vocab_size"])
    own = side == "target" and not layout.model.shared_embedding
    return int(layout.config.get("decoder_vocab_size", size)) if own else size


def _table(layout: Layout, side: str, values: np.ndarray) -> np.ndarray:
    factor = math.sqrt(layout.model.model_dim) if layout.is_scaled else 1.0
    return _in_new_order(layout, side, values, _size(layout, side)) / np.float32(factor)


def _output_bias(layout: Layout, values: np.ndarray) -> dict[str, np.ndarray]:
    if layout.config["model_type"] == "marian":
        # PAD has the bias 0 in Marian; generation_config.json says that it is never written.
        values = np.where(values == NEVER, 0, values)
        size = _size(layout, "target")
        return {"final_logits_bias": _in_new_order(layout, "target", values[:, np.newaxis], size).T}
    if learned := int(np.count_nonzero((values != 0) & (values != NEVER))):
        raise UserError(
            f"Model.output_bias is True and {learned} of its values are not 0; transformers' "
            f"{layout.config['model_type']} has no such bias. Train with Model.output_bias = False, or "
            'keep an imported bias with Train.freeze = ("output_bias",).'
        )
    return {}


def _norm_leaf(leaf: str) -> str:
    return "weight" if leaf == "scale" else leaf


def _in_layer(
    layout: Layout, prefix: str, kind: str, leaf: str, values: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the tensors of a parameter of one layer, which has no dimension R."""
    names = FAMILIES[layout.config["model_type"]].names
    if leaf.startswith("norm/"):
        norm = names[f"{kind}/norm"]
        return {f"{prefix}{norm}.{_norm_leaf(leaf.removeprefix('norm/'))}": values}
    if leaf == "gate":
        return _matrix(f"{prefix}{names[kind]}router.classifier", leaf, values)
    projection = LINEAR[leaf.removesuffix("_bias")]
    if kind == "feed_forward":
        return _matrix(f"{prefix}{names[kind]}{projection}", leaf, values)
    if kind == "moe":
        kept = 1.0 - layout.config["moe_token_dropout"] if leaf.startswith("wo") else 1.0
        experts: dict[str, np.ndarray] = {}
        for e, expert in enumerate(values / np.float32(kept)):
            experts |= _matrix(
                f"{prefix}{names[kind]}experts.expert_{e}.{projection}", leaf, expert
            )
        return experts
    if leaf.startswith("query"):
        # transformers multiplies the query by this factor.
        values = values / np.float32(layout.model.head_dim**-0.5)
    return _matrix(f"{prefix}{names[kind]}.{projection}", leaf, values)


def _matrix(prefix: str, leaf: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Returns a matrix as torch stores it, [outputs, inputs], or a bias."""
    if leaf.endswith("_bias"):
        return {f"{prefix}.bias": values.reshape(-1)}
    inputs = 2 if leaf == "output" else 1
    rows = math.prod(values.shape[:inputs])
    return {f"{prefix}.weight": values.reshape(rows, -1).T}


def write(
    layout: Layout,
    weights: Mapping[str, np.ndarray],
    folder: Path,
    never: Sequence[int] = (),
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Writes config.json, generation_config.json and the weights.

    Args:
      layout: the layout.
      weights: our parameters by name.
      folder: the folder to write into.
      never: our ids that the search never writes.
      generation: what an imported model had in generation_config.json.

    Raises:
      UserError: see `tensors_of`.
    """
    write_tensors(folder / SINGLE, tensors_of(layout, weights))
    # Two names of one setting: transformers 5 reads the first, earlier versions the second.
    dtypes = dict.fromkeys(("dtype", "torch_dtype"), "float32")
    _write_json(folder / CONFIG, {**layout.config, **dtypes})
    ids = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    special = {name: layout.config[name] for name in ids if name in layout.config}
    longest = layout.config.get("max_position_embeddings", 256)
    usual = {**special, "num_beams": 4, "max_length": longest}
    rows = layout.orders["target"].rows
    # A copy of a token has a later id than the token, which may be written.
    tokens = set(np.unique(rows, return_index=True)[1])
    never_new = [[int(rows[i])] for i in never if i in tokens]
    _write_json(folder / GENERATION, {**usual, "bad_words_ids": never_new, **(generation or {})})


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
