"""The settings of models of Hugging Face: M2M-100, NLLB-200, NLLB-MoE and Marian's OPUS-MT.

Their models differ from ours only in settings of `Model` and in constants, which become part of the
weights (`huggingface_weights.py`). A model that was trained here gets the layout of M2M-100, or that of
NLLB-MoE if it has experts. transformers counts positions from the id of PAD, so then the special ids
move, and all other ids stay:

    token      BOS   PAD   EOS   UNK
    our id     3     0     1     2
    new id     0     1     2     3
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gshard_nmt import json_shape
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.json_shape import anything, fields, list_of, mapping_of, number, text, whole
from gshard_nmt.model.config import Model
from gshard_nmt.ranges import LARGEST_SIZE
from gshard_nmt.settings.config import Config

CONFIG = "config.json"
GENERATION = "generation_config.json"
NEW_IDS = (1, 2, 3, 0)
"""The new ids of our PAD, EOS, UNK and BOS."""

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
REMEDY = "Copy the file again from where the model was published."
NEVER = -100.0
"""The bias of the logit of an id that is never written. In float32 it adds nothing to the softmax, and it
is small enough for a loss with label smoothing."""
_SIZE = whole(1, LARGEST_SIZE)
_SIZES = ("layers", "ffn_dim", "attention_heads")
_CONFIG = fields(
    {
        "model_type": text(),
        "vocab_size": _SIZE,
        "d_model": _SIZE,
        **{f"{side}_{name}": _SIZE for side in ("encoder", "decoder") for name in _SIZES},
    },
    {
        **dict.fromkeys(("pad_token_id", "eos_token_id", "decoder_start_token_id"), whole()),
        **dict.fromkeys(("encoder_sparse_step", "decoder_sparse_step", "num_experts"), whole()),
        **dict.fromkeys(("dropout", "attention_dropout", "moe_token_dropout"), number()),
        "max_position_embeddings": _SIZE,
        "activation_function": text(),
    },
)


# fmt: off
_FAIRSEQ = {
    "positions": "sinusoidal", "norm": "layer", "biases": True, "output_bias": True, "start_token": "eos",
}
_START = {
    "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
    "activation_function": "relu", "dropout": 0.1, "attention_dropout": 0.0,
}
_FAMILIES: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "m2m_100": (_FAIRSEQ, _START),
    "nllb-moe": (
        {**_FAIRSEQ, "moe_place": "last"},
        {**_START, "encoder_sparse_step": 4, "decoder_sparse_step": 4, "num_experts": 128,
         "moe_token_dropout": 0.2},
    ),
    "marian": (
        {**_FAIRSEQ, "positions": "vaswani", "norm_place": "after", "start_token": "bos"},
        {**_START, "pad_token_id": 58100, "eos_token_id": 0, "decoder_start_token_id": 58100,
         "activation_function": "gelu"},
    ),
}
# fmt: on
"""By `model_type`: the settings of `Model` that config.json does not have, and the keys that it may leave
out, with their values in transformers."""


class Order(NamedTuple):
    """A SentencePiece model with our special ids, and the ids that its pieces have in the family."""

    model: bytes
    rows: np.ndarray  # int32[V], the family's id of each of our ids
    never: Sequence[int]  # our ids that are no tokens of the decoder; their probability is 0


@dataclasses.dataclass(frozen=True)
class Layout:
    """A model in the layout of a family of transformers.

    `config` is config.json with the defaults of the family, and `orders` the vocabularies of "source" and
    "target".
    """

    config: Mapping[str, Any]
    model: Model
    orders: Mapping[str, Order]


def read_config(folder: Path) -> dict[str, Any]:
    """Returns config.json, with the defaults of the family, or raises UserError if it cannot be read."""
    file = folder / CONFIG
    if not file.is_file():
        raise UserError(
            f"--from {folder} has no {CONFIG}; give the folder of a Hugging Face model, with {CONFIG}, "
            "safetensors and the files of the tokenizer."
        )
    # transformers writes null for a value that it does not use.
    content = {name: value for name, value in read_object(file).items() if value is not None}
    kind = str(content.get("model_type"))
    if kind not in _FAMILIES:
        raise UserError(
            f"--from {folder} is a model of the type {kind!r}; it must be one of {', '.join(_FAMILIES)}. "
            "Choose a model of M2M-100, NLLB-200, NLLB-MoE or OPUS-MT."
        )
    content = {**_FAMILIES[kind][1], **content}
    if problem := json_shape.problem(_CONFIG, content):
        raise UserError(f"{file} is damaged: {problem}. {REMEDY}")
    return content


def model_of(config: Mapping[str, Any]) -> Model:
    """Returns the model that config.json describes; raises UserError if ours lacks a part of it."""
    kind, heads = config["model_type"], config["encoder_attention_heads"]
    settings, activation = _FAMILIES[kind][0], config["activation_function"]
    stacks = ("encoder", "decoder") if kind == "nllb-moe" else ()
    steps = {stack: step for stack in stacks if (step := config[f"{stack}_sparse_step"])}
    same = {"ffn_dim": "hidden_dim", "attention_heads": "heads"}
    same |= {"sparse_step": "moe_every"} if len(steps) == 2 else {}
    # The keys, whether they are right, and what they must be.
    rules = [
        *((f"encoder_{name} decoder_{name}", config[f"encoder_{name}"] == config[f"decoder_{name}"],
           f"equal, as both are Model.{ours}") for name, ours in same.items()),
        ("d_model", config["d_model"] % heads == 0, f"a multiple of the {heads} attention heads"),
        ("activation_function", activation in _ACTIVATIONS, f"one of {', '.join(_ACTIVATIONS)}"),
        *((key, config.get(key, True), "true, as all embeddings are one")
          for key in ("tie_word_embeddings", "share_encoder_decoder_embeddings")),
        ("scale_embedding", config.get("scale_embedding", kind != "marian"), "true, as in our weights"),
        ("router_bias", not config.get("router_bias"), "false, as our gate has no bias"),
        *((f"{side}_layers", config[f"{side}_layers"] % step == 0,
           f"a multiple of {side}_sparse_step = {step}, as our stacks are equal blocks")
          for side, step in steps.items()),
    ]  # fmt: skip
    for names, is_right, allowed in rules:
        if not is_right:
            found = " and ".join(f"{n} is {json.dumps(config.get(n))}" for n in names.split())
            raise UserError(f"in {CONFIG} {found}; it must be {allowed}. Choose another model.")
    experts: dict[str, Any] = {"experts": 0}
    if steps:
        experts = {
            "experts": config["num_experts"],
            "moe_every": next(iter(steps.values())),
            "expert_stacks": "both" if len(steps) == 2 else next(iter(steps)),
        }
    return Model(
        encoder_layers=config["encoder_layers"],
        decoder_layers=config["decoder_layers"],
        model_dim=config["d_model"],
        hidden_dim=config["encoder_ffn_dim"],
        heads=heads,
        head_dim=config["d_model"] // heads,
        activation=_ACTIVATIONS[activation],
        shared_embedding=True,
        position_offset=config["pad_token_id"] + 1 if settings["positions"] == "sinusoidal" else 0,
        input_dropout=config["dropout"],
        residual_dropout=config["dropout"],
        attention_dropout=config["attention_dropout"],
        **experts,
        **settings,
    )


def has_layout(config: Mapping[str, Any], model: Model) -> bool:
    """Returns whether a model still has the layout of config.json, after training."""
    own = model_of(config)
    if config["model_type"] == "marian" and model.positions == "sinusoidal":
        # It was imported with --marian_positions.
        own = dataclasses.replace(own, positions=model.positions)
    return all(getattr(own, name) == getattr(model, name) for name in _LAYOUT)


_LAYOUT = (
    *("encoder_layers", "decoder_layers", "model_dim", "hidden_dim", "heads", "head_dim"),
    *("activation", "biases", "norm", "norm_place", "shared_embedding", "output_bias", "positions"),
    *("position_offset", "experts", "moe_every", "moe_place", "expert_stacks", "start_token"),
    *("routing", "eval_second_expert", "expert_hidden_dim", "shared_expert_dim"),
)
"""The settings of `Model` that config.json fixes."""

_OUR_ROUTER = {
    "second_expert_policy": "all",
    # Each expert has a slot for each token.
    "moe_eval_capacity_token_fraction": 1.0,
    "router_dtype": "float32",
}
"""The settings of NLLB-MoE that transformers uses, and that our evaluation always has."""


_M2M = {
    "norm": ("layer",), "norm_place": ("before",), "biases": (True,), "shared_embedding": (True,),
    "positions": ("sinusoidal",), "activation": ("relu", "gelu", "swish"),
    # transformers counts positions from the id of PAD, which is 1, plus 1.
    "position_offset": (2,),
}  # fmt: skip
_ALLOWED: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "CTranslate2": {"experts": (0,)},
    "M2M-100": {**_M2M, "experts": (0,)},
    "NLLB-MoE": {
        **_M2M, "moe_place": ("last",), "routing": ("top2",), "eval_second_expert": ("all",),
        "shared_expert_dim": (0,), "expert_hidden_dim": (0,),
    },
}  # fmt: skip
"""The values that settings of `Model` may have in each layout of an export."""


def check_settings(model: Model, kind: str) -> None:
    """Raises UserError with each setting of `Model` that a layout lacks."""
    if model.expert_hidden_dim == model.hidden_dim:
        model = dataclasses.replace(model, expert_hidden_dim=0)
    wrong = [
        f"Model.{setting} is {getattr(model, setting)!r}; it must be {' or '.join(map(repr, values))}"
        for setting, values in _ALLOWED[kind].items()
        if getattr(model, setting) not in values
    ]
    if not model.encoder_layers:
        wrong.append("Model.encoder_layers is 0; it must be at least 1")
    if (width := model.heads * model.head_dim) != model.model_dim:
        right = f"Model.model_dim = {model.model_dim}"
        wrong.append(f"Model.heads * Model.head_dim is {width}; it must be {right}")
    if wrong:
        lines = "".join(f"\n  {line}" for line in wrong)
        raise UserError(
            f"the model does not have the layout of {kind}:{lines}\nChoose another --format, or train a "
            "model with these settings (configs/models/m2m_100.gin has those of M2M-100, "
            "configs/experiments/student.gin trains a dense student)."
        )


def layout_of(config: Config, vocabularies: Mapping[str, Vocabulary]) -> Layout:
    """Returns the layout of a model of our own, or raises UserError with each setting that it lacks."""
    model = config.model
    check_settings(model, "NLLB-MoE" if model.experts else "M2M-100")
    orders = {
        side: Order(own.content, np.array([*NEW_IDS, *range(len(NEW_IDS), own.size)], np.int32), ())
        for side, own in vocabularies.items()
    }
    lengths = (config.data.source_length, config.data.target_length, *config.decode.source_lengths)
    content = {
        "architectures": ["M2M100ForConditionalGeneration"], "model_type": "m2m_100",
        "vocab_size": len(orders["target"].rows), "d_model": model.model_dim,
        "activation_function": model.activation, "dropout": model.residual_dropout,
        "attention_dropout": model.attention_dropout, "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
        "scale_embedding": True, "tie_word_embeddings": True, "max_position_embeddings": max(lengths),
        "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 2 if model.start_token == "eos" else 0,
    }  # fmt: skip
    if model.experts:
        content |= {
            "architectures": ["NllbMoeForConditionalGeneration"], "model_type": "nllb-moe",
            "num_experts": model.experts, "moe_token_dropout": 0.0, **_OUR_ROUTER,
            "router_bias": False, "normalize_router_prob_before_dropping": False,
        }  # fmt: skip
    for stack in ("encoder", "decoder"):
        sizes = (model.depth(stack), model.hidden_dim, model.heads)
        content |= {f"{stack}_{k}": size for k, size in zip(_SIZES, sizes, strict=True)}
        if model.experts:
            step = model.moe_every if model.has_experts(stack) else 0
            content[f"{stack}_sparse_step"] = step
    return Layout(content, model, orders)


_SEARCH = fields(
    {},
    {
        "bad_words_ids": list_of(list_of(whole(), least=1)),
        "suppress_tokens": list_of(whole()),
        "num_beams": whole(1),
    },
)


_OF_SEARCH = (
    *("num_beams", "max_length", "min_length", "length_penalty", "repetition_penalty"),
    *("no_repeat_ngram_size", "early_stopping", "forced_eos_token_id"),
    *("bad_words_ids", "suppress_tokens"),
)


class Generation(NamedTuple):
    """How transformers searches with a model."""

    # that of generation_config.json, and keys that older folders have elsewhere
    content: Mapping[str, Any]
    never: frozenset[int]  # the ids of the folder that are never written
    beam: int | None  # None if the folder does not say


def read_generation(folder: Path, config: Mapping[str, Any]) -> Generation:
    """Reads generation_config.json. Older folders have its keys in config.json, which is `config`."""
    file = folder / GENERATION
    content = read_object(file)
    known = {**config, **{key: value for key, value in content.items() if value is not None}}
    if problem := json_shape.problem(_SEARCH, known):
        raise UserError(f"{file} is damaged: {problem}. {REMEDY}")
    never = {phrase[0] for phrase in known.get("bad_words_ids", []) if len(phrase) == 1}
    never |= set(known.get("suppress_tokens", []))
    never.discard(config["eos_token_id"])
    search = {key: known[key] for key in _OF_SEARCH if known.get(key) is not None}
    return Generation(content | search, frozenset(never), known.get("num_beams"))


def read_object(file: Path) -> dict[str, Any]:
    """Returns the content of a JSON file, or {} if there is no such file."""
    return dict(json_shape.read(file, mapping_of(anything()), REMEDY)) if file.is_file() else {}
