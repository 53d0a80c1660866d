"""Small random models that CTranslate2 and this package both score.

    python -m tests.exchange.random_exports FOLDER           # with this package: writes the models
    python -m scripts.score_with_ctranslate2 FOLDER GOLDEN   # with CTranslate2: writes its scores

GOLDEN is tests/exchange/goldens/ctranslate2_scores.json, with which a test compares our scores.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.exchange import ctranslate2
from gshard_nmt.exchange.huggingface import read_config
from gshard_nmt.exchange.huggingface_tokenizer import read_tokenizer
from gshard_nmt.model import transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode
from tests.exchange.test_huggingface import GOLDENS

SMALL = Model(*(2, 1, 8, 12), heads=2, head_dim=4, experts=0)
MODELS = {
    "relative": SMALL,
    "geglu": dataclasses.replace(SMALL, activation="geglu"),
    "m2m_100": dataclasses.replace(
        SMALL,
        norm="layer",
        biases=True,
        shared_embedding=True,
        positions="sinusoidal",
        position_offset=2,
        output_bias=True,
    ),
    "marian": dataclasses.replace(
        SMALL, norm="layer", biases=True, norm_place="after", positions="vaswani"
    ),
    "learned": dataclasses.replace(SMALL, norm="layer", positions="learned", max_positions=12),
}
"""Layouts that an export may have: the positions, norms, activations and biases of several families."""

EOS, START = 1, 3
SENTENCES = 4


def vocabulary() -> Vocabulary:
    """Returns a vocabulary with our special ids."""
    folder = GOLDENS / "m2m_100"
    return Vocabulary(read_tokenizer(folder, read_config(folder)).orders["target"].model)


def weights_of(name: str, size: int) -> dict[str, np.ndarray]:
    """Returns random weights; scales are near 1, so that norms do not hide a mistake."""
    random = np.random.default_rng(3)
    return {
        weight: np.float32(random.normal(size=p.shape, scale=0.5) + weight.endswith("scale"))
        for weight, p in transformer.declare(MODELS[name], size, size).items()
    }


def sentences(size: int) -> list[tuple[list[int], list[int]]]:
    """Returns pairs of random source and target ids, of several lengths, without EOS."""
    random = np.random.default_rng(4)
    return [
        tuple(random.integers(4, size, random.integers(2, 10)).tolist() for _ in range(2))
        for _ in range(SENTENCES)
    ]


def scores(name: str) -> list[list[float]]:
    """Returns the log probability of each target token, EOS included."""
    size = vocabulary().size
    weights = {weight: tf.constant(value) for weight, value in weights_of(name, size).items()}
    return [_scores(MODELS[name], weights, *pair) for pair in sentences(size)]


def _scores(
    model: Model, weights: dict[str, tf.Tensor], source: list[int], target: list[int]
) -> list[float]:
    batch = {}
    for side, key, ids in (
        ("source", "ids", [*source, EOS]),
        ("target", "inputs", [START, *target]),
    ):
        batch[f"{side}_{key}"] = tf.constant([ids], tf.int32)
        batch[f"{side}_segments"] = tf.ones([1, len(ids)], tf.int32)
        batch[f"{side}_positions"] = tf.range(len(ids))[None]
    memory, _ = transformer.encode(model, weights, batch, Mode(), None)
    logits = transformer.decode(model, weights, memory, batch, Mode(), None)[0]
    log_probs = tf.nn.log_softmax(logits).numpy()[0]
    return [float(log_probs[i, token]) for i, token in enumerate([*target, EOS])]


def main() -> None:
    """Writes each model as a folder for CTranslate2, and the sentences as pieces."""
    folder, pieces = Path(sys.argv[1]), vocabulary()
    for name, model in MODELS.items():
        (folder / name).mkdir(parents=True)
        sides = {"source": pieces, "target": pieces}
        ctranslate2.write(model, weights_of(name, pieces.size), sides, folder / name)
    pairs = [[pieces.pieces(ids) for ids in pair] for pair in sentences(pieces.size)]
    (folder / "sentences.json").write_text(json.dumps(pairs))


if __name__ == "__main__":
    main()
