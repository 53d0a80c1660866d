"""A small model, two packed sentences and the scalars of a step, for tests of several modules."""

import dataclasses

import numpy as np
import tensorflow as tf

from gshard_nmt.model import counter_random, decoding_weights, transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.parameters import initial_values

WIDTHS = {"model_dim": 16, "hidden_dim": 32, "heads": 2, "head_dim": 8}
NARROW = {"model_dim": 8, "hidden_dim": 12, "heads": 2, "head_dim": 4}
WITHOUT_DROPOUT = dict.fromkeys(("input_dropout", "residual_dropout", "attention_dropout"), 0.0)
LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "moe_every": 1}
MOE = Model(**LAYERS, **WIDTHS, experts=8, num_groups=8)
SMALL = Model(
    encoder_layers=4, decoder_layers=2, model_dim=16, hidden_dim=24, heads=2, head_dim=4, experts=4
)
SMALL = dataclasses.replace(SMALL, num_groups=2, max_positions=8)
DENSE = dataclasses.replace(SMALL, experts=0)
FOREIGN = dataclasses.replace(
    SMALL,
    norm="layer",
    biases=True,
    activation="swish",
    positions="vaswani",
    position_offset=2,
    output_bias=True,
    moe_place="last",
)
"""A model with the parts of other systems."""
POST_NORM = dataclasses.replace(FOREIGN, norm_place="after", experts=0, activation="gelu")
SHARED = dataclasses.replace(SMALL, shared_expert_dim=12)
TOGETHER: dict[str, dict] = {
    "ours": {},
    "post-norm": {"norm_place": "after"},
    "M2M-100": {
        "norm": "layer",
        "biases": True,
        "output_bias": True,
        "shared_embedding": True,
        "positions": "vaswani",
        "position_offset": 2,
    },
    "others": {
        "activation": "geglu",
        "biases": True,
        "moe_place": "last",
        "positions": "learned",
        "max_positions": 24,
    },
}
"""The settings of `Model` that other systems have, and the default does not; several at once."""
MIXED = dataclasses.replace(SMALL, expert_stacks="encoder", decoder_layers=3)


def parameters(model: Model) -> dict[str, tf.Tensor]:
    """Draws the parameters for vocabularies of 50 and 40 tokens."""
    key = counter_random.Key.from_seed(tf.constant([1, 2], tf.uint32))
    values = initial_values(declared(model), key)
    # A new bias is 0, and would not show whether the model adds it.
    for name, value in values.items():
        if name.endswith("bias") and "relative" not in name:
            waves = tf.sin(tf.range(tf.size(value), dtype=tf.float32))
            values[name] = tf.reshape(waves, value.shape)
    return values


def rows(*sentences, length: int) -> dict[str, tf.Tensor]:
    """Returns a batch of rows of (source ids, target ids); the n-th of a row, from 1, has language n."""
    names = ("source_ids", "source_segments", "source_positions")
    names += ("target_inputs", "target_labels", "target_segments", "target_positions")
    names += ("source_languages", "target_languages")
    batch = {name: np.zeros((len(sentences), length), "i") for name in names}
    for r, row in enumerate(sentences):
        at = {"source": 0, "target": 0}
        for segment, (source, target) in enumerate(row, 1):
            for side, ids in (("source", source), ("target", target)):
                place = slice(at[side], at[side] + len(ids))
                batch[f"{side}_segments"][r, place] = segment
                batch[f"{side}_positions"][r, place] = range(len(ids))
                batch[f"{side}_languages"][r, place] = segment
                at[side] += len(ids)
                if side == "source":
                    batch["source_ids"][r, place] = ids
                else:
                    batch["target_labels"][r, place] = ids
                    batch["target_inputs"][r, place] = [3, *ids[:-1]]
    return {name: tf.constant(array) for name, array in batch.items()}


def packed(segments: list[list[int]], sources: int, targets: int) -> dict[str, np.ndarray]:
    """Returns rows of random words in these segments; row r has the language 1 + r mod 3."""
    rng, numbers = np.random.default_rng(0), np.array(segments)
    vocabularies = {"source_ids": sources, "target_inputs": targets, "target_labels": targets}
    batch = {name: rng.integers(4, size, numbers.shape) for name, size in vocabularies.items()}
    languages = 1 + np.arange(len(segments))[:, np.newaxis] % 3
    positions = [[i - row.index(n) if n else 0 for i, n in enumerate(row)] for row in segments]
    for side in ("source", "target"):
        batch |= {f"{side}_segments": numbers, f"{side}_positions": np.array(positions)}
        batch[f"{side}_languages"] = np.where(numbers, languages, 0)
    return {name: array.astype(np.int32) for name, array in batch.items()}


CONTROL = {
    "seed": tf.constant([1, 0], tf.uint32),
    "max_steps": tf.constant(100),
    "max_tokens": tf.constant([0, 0], tf.uint32),
    "one": tf.constant(1.0),
}
ONE = ([5, 6, 7, 1], [9, 8, 1])
TWO = ([11, 12, 1], [13, 14, 15, 1])


def declared(model: Model) -> dict:
    """Declares the parameters of `parameters`."""
    return transformer.declare(model, 40 if model.shared_embedding else 50, 40)


def read_weights(model: Model, p: dict[str, tf.Tensor], precision: str) -> dict:
    """Returns parameters as decoding reads them."""
    pieces = decoding_weights.plan(model, declared(model), precision)
    return decoding_weights.read(pieces, decoding_weights.prepare(pieces, p))
