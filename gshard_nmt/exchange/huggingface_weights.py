"""The weights of Hugging Face folders as ours, and ours as theirs.

Some constants of transformers are part of our weights:

- Our attention does not multiply its logits by D**-0.5, so the query has this factor.
- Our logits are products with x * M**-0.5, so the embedding has the factor M**0.5. Their encoders and
  decoders multiply the embedding by the same factor, and ours do not.
- NLLB-MoE multiplies the outputs of experts by 1 - moe_token_dropout after training.

`_tensor_of` has the name and the factor of each tensor, for both ways.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy then knows bfloat16)
import numpy as np
import safetensors
import safetensors.numpy

from gshard_nmt import files
from gshard_nmt.data.reading.rows import listed
from gshard_nmt.data.text.vocabulary import BOS, PAD
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.huggingface import CONFIG, GENERATION, NEVER, REMEDY, Layout
from gshard_nmt.model.parameters import Parameter

SINGLE = "model.safetensors"

_DTYPES = ("F64", "F32", "F16", "BF16")
_LINEAR = {
    "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj",
    "wi": "fc1", "wo": "fc2",
}  # fmt: skip
"""The linear layers of torch, by the names of our matrices."""
_NAMES = {
    "self_attention": ("self_attn.", "self_attn_layer_norm"),
    "cross_attention": ("encoder_attn.", "encoder_attn_layer_norm"),
    "feed_forward": ("", "final_layer_norm"),
}
_MOE_NAMES = {
    "self_attention": ("self_attn.", "self_attn_layer_norm"),
    "cross_attention": ("cross_attention.", "cross_attention_layer_norm"),
    "feed_forward": ("ffn.", "ff_layer_norm"),
    "moe": ("ffn.", "ff_layer_norm"),
}
"""The beginnings of the names of a sublayer and of its norm, by our names; and those of NLLB-MoE."""
_EMBEDDINGS = (
    *("model.shared.weight", "model.encoder.embed_tokens.weight"),
    *("model.decoder.embed_tokens.weight", "lm_head.weight"),
)
"""The names of the embedding. Equal tensors are stored once, under one of them."""
_UNREAD = ("embed_positions", "embed_tokens", "lm_head")
"""Words in the names of tensors that hold nothing we need."""


class Tensors:
    """The tensors of a folder by name. The files are mapped into memory, and read when needed."""

    def __init__(self, folder: Path) -> None:
        """Reads the headers of all files; raises UserError if there is none, or one is damaged."""
        self.folder = folder
        self._files: dict[str, Any] = {}
        single = folder / SINGLE
        files = [single] if single.is_file() else sorted(folder.glob("model-*.safetensors"))
        if not files:
            raise UserError(
                f"--from {folder} has no {SINGLE}; other files of weights are not read, because pickled "
                "ones can run code. Load the model with transformers, and write it with save_pretrained."
            )
        for path in files:
            try:
                file = safetensors.safe_open(path, framework="numpy")
                new = dict.fromkeys(file.keys(), file)
            except (safetensors.SafetensorError, OSError) as error:
                raise UserError(f"{path} is damaged: {error}. {REMEDY}") from None
            if twice := self._files.keys() & new.keys():
                raise UserError(
                    f"--from {folder} has the tensor {min(twice)} in two files, so they are not of one "
                    "model. Remove those that model.safetensors.index.json does not list."
                )
            self._files |= new
        self.unread = set(self._files)
        """The names of the tensors that have not been read."""

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Returns a tensor as float32; raises UserError if it is missing, or of another shape or kind."""
        problem = "is missing, so this is not the whole model that config.json describes"
        if name in self._files:
            tensor = self._files[name].get_slice(name)
            found, dtype = tensor.get_shape(), tensor.get_dtype()
            problem = f"is {dtype} {found}, but by config.json it must be floats {list(shape)}"
            if found == list(shape) and dtype in _DTYPES:
                self.unread.discard(name)
                values: np.ndarray = self._files[name].get_tensor(name).astype(np.float32)
                if np.isfinite(values).all():
                    return values
                problem = "has values that are not finite"
        raise UserError(
            f"--from {self.folder}: the tensor {name} {problem}. Copy the whole model again, or "
            "save it with transformers as float32."
        )


def read_weights(
    layout: Layout, tensors: Tensors, declared: Mapping[str, Parameter]
) -> dict[str, np.ndarray]:
    """Returns our parameters, float32; raises UserError if a tensor is missing, wrong or left over."""
    weights = {name: read_weight(layout, tensors, name, p) for name, p in declared.items()}
    leftovers = sorted(n for n in tensors.unread if not set(_UNREAD) & set(n.split(".")))
    if leftovers:
        raise UserError(
            f"--from {tensors.folder} has tensors that the model of its config.json does not have: "
            f"{listed(leftovers)}. Take both files from the same model."
        )
    return weights


def read_weight(layout: Layout, tensors: Tensors, name: str, parameter: Parameter) -> np.ndarray:
    """Returns one of our parameters, float32 of its declared shape."""
    order, size = layout.orders["target"], layout.config["vocab_size"]
    if name == "target_embedding":
        known = next((known for known in _EMBEDDINGS if known in tensors), _EMBEDDINGS[0])
        table = tensors.read(known, (size, layout.model.model_dim))
        return table[order.rows] * np.float32(math.sqrt(layout.model.model_dim))
    if name == "output_bias":
        bias = np.zeros(len(order.rows), np.float32)
        if "final_logits_bias" in tensors:
            bias = tensors.read("final_logits_bias", (1, size))[0][order.rows]
        bias[list(order.never)] = NEVER
        return bias
    values = np.empty(parameter.shape, np.float32)
    for index in _parts(name, parameter.shape):
        tensor, factor = _tensor_of(layout, name, index)
        shape = values[index].shape
        # torch stores a matrix as [outputs, inputs].
        theirs = (math.prod(shape),) if _is_vector(name) else _matrix_shape(name, shape)[::-1]
        values[index] = tensors.read(tensor, theirs).T.reshape(shape) * factor
    return values


def tensors_of(layout: Layout, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors of a Hugging Face folder by name, float32, of our parameters."""
    tensors: dict[str, np.ndarray] = {}
    for name, array in weights.items():
        values = np.asarray(array, np.float32)
        if name == "target_embedding":
            scale = np.float32(math.sqrt(layout.model.model_dim))
            tensors[_EMBEDDINGS[0]] = _in_their_order(layout, values) / scale
        elif name == "output_bias":
            # PAD has the bias 0 in Marian; generation_config.json says that it is never written.
            bias = np.where(values == NEVER, 0, values)
            if layout.config["model_type"] == "marian":
                tensors["final_logits_bias"] = _in_their_order(layout, bias)[np.newaxis]
            elif learned := int(np.count_nonzero(bias)):
                raise UserError(
                    f"Model.output_bias is True and {learned} of its values are not 0; transformers' "
                    f"{layout.config['model_type']} has no such bias. Train with Model.output_bias = "
                    'False, or keep an imported bias with Train.freeze = ("output_bias",).'
                )
        else:
            for index in _parts(name, values.shape):
                tensor, factor = _tensor_of(layout, name, index)
                part = values[index]
                theirs = (-1,) if _is_vector(name) else _matrix_shape(name, part.shape)
                tensors[tensor] = part.reshape(theirs).T / factor
    return tensors


def _in_their_order(layout: Layout, values: np.ndarray) -> np.ndarray:
    """Returns values [V, ...] of our ids in the order of the family's ids, [vocab_size, ...]."""
    rows = layout.orders["target"].rows
    moved = np.zeros((layout.config["vocab_size"], *values.shape[1:]), np.float32)
    # A token has a lower id than its copies, so its value is written last.
    moved[rows[::-1]] = values[::-1]
    if rows[BOS] == rows[PAD]:
        moved[rows[BOS]] = values[BOS]  # no model reads PAD
    return moved


def _parts(name: str, shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the index of each layer in a parameter [R, ...], and of each expert in [R, E, ...]."""
    if "/block/" not in name:
        return iter([()])
    is_of_expert = "/moe_" in name and not name.endswith("/gate") and "/norm/" not in name
    return np.ndindex(*shape[: 2 if is_of_expert else 1])


def _tensor_of(layout: Layout, name: str, index: tuple[int, ...]) -> tuple[str, np.float32]:
    """Returns the name of the tensor of a part of our parameter, and ours divided by theirs."""
    one = np.float32(1)
    end = "bias" if name.endswith("bias") else "weight"
    stack, _, place = name.partition("/")
    if place.startswith("final_norm/"):
        return f"model.{stack}.layer_norm.{end}", one
    sublayer, _, leaf = place.removeprefix("block/").partition("/")
    kind, _, number = sublayer.rpartition("_")
    layer = index[0] * layout.model.block_layers(stack) + int(number)
    names = _MOE_NAMES if layout.config["model_type"] == "nllb-moe" else _NAMES
    prefix = f"model.{stack}.layers.{layer}."
    if leaf.startswith("norm/"):
        return f"{prefix}{names[kind][1]}.{end}", one
    prefix += names[kind][0]
    if leaf == "gate":
        return f"{prefix}router.classifier.weight", one
    linear = f"{_LINEAR[leaf.removesuffix('_bias')]}.{end}"
    if kind == "moe":
        kept = 1.0 - layout.config["moe_token_dropout"] if leaf.startswith("wo") else 1.0
        return f"{prefix}experts.expert_{index[1]}.{linear}", np.float32(kept)
    factor = np.float32(layout.model.head_dim**-0.5) if leaf.startswith("query") else one
    return prefix + linear, factor


def _is_vector(name: str) -> bool:
    return name.endswith(("bias", "norm/scale"))


def _matrix_shape(name: str, shape: Sequence[int]) -> tuple[int, int]:
    """Returns the numbers of inputs and outputs of a matrix of ours."""
    inputs = 2 if name.endswith("/output") else 1  # an output is [N, D, M]
    return math.prod(shape[:inputs]), math.prod(shape[inputs:])


def write(
    layout: Layout,
    weights: Mapping[str, np.ndarray],
    folder: Path,
    never: Sequence[int] = (),
    generation: Mapping[str, Any] | None = None,
    new_tokens: int = 0,
) -> None:
    """Writes config.json, generation_config.json and the weights into a folder; see `tensors_of`.

    The search never writes our ids of `never`. `generation` are the settings of the
    search that an imported model had, and `new_tokens` the number of tokens that it has got.
    """
    write_tensors(folder / SINGLE, tensors_of(layout, weights))
    # Two names of one setting: transformers 5 reads the first, earlier versions the second.
    dtypes = dict.fromkeys(("dtype", "torch_dtype"), "float32")
    files.write_json(folder / CONFIG, {**layout.config, **dtypes})
    ids = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id")
    special = {name: layout.config[name] for name in ids if name in layout.config}
    longest = layout.config.get("max_position_embeddings", 256)
    usual = {**special, "num_beams": 4, "max_length": longest}
    rows = layout.orders["target"].rows
    # A copy of a token has a later id than the token, which may be written.
    tokens = set(np.unique(rows, return_index=True)[1])
    never_new = [[int(rows[i])] for i in never if i in tokens]
    content = {**usual, "bad_words_ids": never_new, **(generation or {})}
    listed = content["bad_words_ids"] or []
    # An imported model says what it never wrote. Its new tags have the last ids.
    added = [ids for ids in never_new if ids[0] >= layout.config["vocab_size"] - new_tokens]
    content["bad_words_ids"] = [*listed, *(ids for ids in added if ids not in listed)]
    files.write_json(folder / GENERATION, content)


def write_tensors(file: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a file of float32 tensors, which may have any float dtype in memory."""
    # The library writes the memory as it lies.
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}
    safetensors.numpy.save_file(arrays, file, {"format": "pt"})
