"""Folders of CTranslate2: it loads them, and its scores and translations are ours."""

import dataclasses
import json
import sys

import ctranslate2 as package
import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.data.text.vocabulary import BOS, EOS, Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import ctranslate2
from gshard_nmt.model import transformer
from gshard_nmt.model.config import Model
from gshard_nmt.model.layers import Mode
from tests.exchange.test_huggingface_weights import vocabulary, weights_of  # noqa: F401 (a fixture)

SMALL = Model(*(2, 1, 8, 12), heads=2, head_dim=4, experts=0)
M2M_100 = dataclasses.replace(
    SMALL, norm="layer", biases=True, shared_embedding=True, positions="sinusoidal"
)
MODELS = {
    "relative": SMALL,
    "geglu": dataclasses.replace(
        SMALL, activation="geglu", norm="layer", positions="learned", max_positions=12
    ),
    "m2m_100": dataclasses.replace(M2M_100, position_offset=2, output_bias=True),
    "marian": dataclasses.replace(
        SMALL, norm="layer", biases=True, norm_place="after", positions="vaswani", activation="gelu"
    ),
}
"""Layouts that an export may have: the positions, norms, activations and biases of several families."""


def log_probs(model: Model, weights, source: list[int], target: list[int]) -> np.ndarray:
    """Returns our log probabilities of each next token, float[1 + tokens, V]."""
    batch = {}
    for side, key, ids in (("source", "ids", [*source, EOS]), ("target", "inputs", [BOS, *target])):
        batch[f"{side}_{key}"] = tf.constant([ids], tf.int32)
        batch[f"{side}_segments"] = tf.ones([1, len(ids)], tf.int32)
        batch[f"{side}_positions"] = tf.range(len(ids))[None]
    tensors = {name: tf.constant(value) for name, value in weights.items()}
    logits = transformer.encode_and_decode(model, tensors, batch, Mode())[0]
    return tf.nn.log_softmax(logits).numpy()[0]


def exported(folder, model: Model, vocabulary: Vocabulary, **options):  # noqa: F811
    weights = weights_of(model, vocabulary.size)
    sides = {"source": vocabulary, "target": vocabulary}
    ctranslate2.write(model, weights, sides, folder, **options)
    return weights, package.Translator(str(folder), compute_type="float32", inter_threads=1)


@pytest.mark.parametrize("name", MODELS)
def test_its_scores_are_ours(tmp_path, vocabulary, name):  # noqa: F811
    weights, translator = exported(tmp_path, MODELS[name], vocabulary)
    random = np.random.default_rng(4)
    for _ in range(4):
        source, target = (
            random.integers(4, vocabulary.size, random.integers(2, 10)).tolist() for _ in range(2)
        )
        (theirs,) = translator.score_batch([vocabulary.pieces(source)], [vocabulary.pieces(target)])
        ours = log_probs(MODELS[name], weights, source, target)
        expected = [ours[i, token] for i, token in enumerate([*target, EOS])]
        np.testing.assert_allclose(theirs.log_probs, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["m2m_100", "relative"])
def test_its_translations_are_ours_and_never_have_what_is_banned(tmp_path, vocabulary, name):  # noqa: F811
    model, banned = MODELS[name], [0, 3, *range(20, vocabulary.size)]
    weights, translator = exported(tmp_path, model, vocabulary, never=banned)
    source, target = [5, 9, 7], []
    while len(target) < 8 and target[-1:] != [EOS]:
        scores = log_probs(model, weights, source, target)[-1]
        scores[banned] = -np.inf
        target.append(int(scores.argmax()))
    (theirs,) = translator.translate_batch(
        [vocabulary.pieces(source)], beam_size=1, max_decoding_length=8, min_decoding_length=0
    )
    assert theirs.hypotheses[0] == vocabulary.pieces([i for i in target if i != EOS])


def test_a_long_sentence_has_its_sinusoids(tmp_path, vocabulary):  # noqa: F811
    model = MODELS["m2m_100"]
    weights, translator = exported(tmp_path, model, vocabulary, longest=1500)
    ids = np.random.default_rng(1).integers(4, vocabulary.size, 1400).tolist()
    (theirs,) = translator.score_batch(
        [vocabulary.pieces(ids)], [vocabulary.pieces(ids[:2])], max_input_length=0
    )
    ours = log_probs(model, weights, ids, ids[:2])
    np.testing.assert_allclose(theirs.log_probs[0], ours[0, ids[0]], atol=1e-4)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["layer_norm_epsilon"], config["add_source_eos"]) == (1e-5, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": 4, "moe_every": 1}, "Model.experts is 4; it must be 0\n"),
        ({"encoder_layers": 0}, "Model.encoder_layers is 0; it must be at least 1"),
        ({"head_dim": 3}, "Model.heads * Model.head_dim is 6; it must be Model.model_dim = 8"),
    ],
)
def test_a_model_that_ctranslate2_lacks_is_refused(changes, message):
    with pytest.raises(UserError) as error:
        ctranslate2.check(dataclasses.replace(SMALL, **changes))
    assert message in str(error.value)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"it with: pip install 'gshard-nmt\[ctranslate2\]'"):
        ctranslate2.check(SMALL)
