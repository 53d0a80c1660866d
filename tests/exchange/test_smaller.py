"""A smaller model: text is split as before, tokens keep their embeddings, layers their experts."""

import dataclasses

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from gshard_nmt.data.text.vocabulary import Vocabulary, VocabularySpec, train_vocabulary
from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.exchange.smaller import (
    cut_vocabulary,
    cut_weights,
    kept_experts,
    kept_ids,
    merges,
    used_ids,
)
from gshard_nmt.model.config import Model
from gshard_nmt.model.figures import moe_layer_names
from gshard_nmt.model.transformer import declare

GERMAN = ["Die Datei wurde nicht gefunden.", "Der Ordner ist leer; öffnen Sie die Datei Ω."]
FRENCH = ["Le fichier est introuvable.", "Ouvrez un autre fichier, le dossier est vide !"]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def vocabulary(request, tmp_path_factory) -> Vocabulary:
    tags = ("<2de>", "<2fr>", "<spare1>")
    spec = VocabularySpec(size=400, model=request.param, tags=tags)
    path = tmp_path_factory.mktemp("vocabulary") / "source.model"
    return train_vocabulary(GERMAN + FRENCH, spec, path)


def test_text_is_split_as_before(vocabulary):
    kept = kept_ids(vocabulary, used_ids(vocabulary, [GERMAN]), ["fr"])
    smaller = Vocabulary(cut_vocabulary(vocabulary, kept))
    assert smaller.size == len(kept) < vocabulary.size
    table = np.random.default_rng(1).normal(size=(vocabulary.size, 4))
    for line in GERMAN:
        (old,), (new,) = vocabulary.encode([line]), smaller.encode([line])
        assert smaller.pieces(new) == vocabulary.pieces(old)
        np.testing.assert_array_equal(table[kept][new], table[old])
    # Text of the other language is still text: bytes spell what has no piece.
    assert smaller.decode(smaller.encode(FRENCH)) == FRENCH
    assert smaller.tag("<2fr>") is None
    assert smaller.tag("<2de>") is not None
    assert smaller.tag("<spare1>") is not None
    # The training settings inside the file name the tags that stay, and no other.
    settings = sentencepiece_model_pb2.ModelProto.FromString(smaller.content).trainer_spec
    assert list(settings.control_symbols) == ["<2de>", "<spare1>"]
    assert Vocabulary(smaller.content).keys()[:4] == vocabulary.keys()[:4]


def test_merges_are_the_pieces_on_the_way():
    """abab: ab has the highest score, twice; then abab. abc: bc comes before ab."""
    scores = {"ab": -1.0, "abab": -3.0, "bc": 0.0, "abc": -4.0}
    assert merges("abab", scores) == {"ab", "abab"}
    assert merges("abc", scores) == {"bc", "abc"}
    assert merges("a", scores) == set()
    # Of two neighbours with equal scores, the first are merged.
    assert merges("xyz", {"xy": -1.0, "yz": -1.0, "xyz": -2.0}) == {"xy", "xyz"}


def use_of(weight) -> ExpertUse:
    """All experts are chosen equally often, with other weights."""
    sums = np.array(weight, float)[:, np.newaxis]
    nothing = np.zeros(1)
    chosen = np.ones_like(sums)
    return ExpertUse(["encoder_1", "encoder_3"], nothing, chosen, sums, nothing)


def test_layers_keep_the_experts_that_are_chosen_with_the_largest_weights():
    use = use_of([[50, 0, 49, 1], [10, 20, 30, 40]])
    assert kept_experts(use, 0.9)[0].tolist() == [[0, 2, 3], [1, 2, 3]]
    # Each layer keeps all of its choices, so the second one needs all four.
    assert kept_experts(use, 1.0)[0].tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    experts, least = kept_experts(use, 0.0)
    assert experts.tolist() == [[0, 2], [2, 3]]
    assert least == pytest.approx(0.7)


@pytest.mark.parametrize("place", ["first", "last"])
def test_the_weights_are_those_of_the_parts_that_stay(place):
    model = Model(
        encoder_layers=4, decoder_layers=2, model_dim=8, hidden_dim=6, experts=4, moe_place=place,
        expert_stacks="both", biases=True, shared_expert_dim=5,
    )  # fmt: skip
    declared = declare(model, 9, 7)
    random = np.random.default_rng(3)
    weights = {name: random.normal(size=p.shape) for name, p in declared.items()}
    ids = {"source": np.array([0, 1, 2, 3, 8]), "target": np.array([0, 1, 2, 3, 5, 6])}
    experts = dict(zip(moe_layer_names(model), ([0, 3], [1, 2], [0, 2]), strict=True))
    smaller = cut_weights(model, declared, weights, ids, experts)
    expected = declare(dataclasses.replace(model, experts=2), 5, 6)
    assert {name: array.shape for name, array in smaller.items()} == {
        name: parameter.shape for name, parameter in expected.items()
    }
    moe = f"encoder/block/moe_{model.moe_layer('encoder')}"
    for leaf in ("wi", "wi_bias", "wo", "wo_bias"):
        name = f"{moe}/{leaf}"
        np.testing.assert_array_equal(smaller[name][0], weights[name][0][[0, 3]])
        np.testing.assert_array_equal(smaller[name][1], weights[name][1][[1, 2]])
    wi = f"decoder/block/moe_{model.moe_layer('decoder')}/wi"
    np.testing.assert_array_equal(smaller[wi][0], weights[wi][0][[0, 2]])
    gate = f"{moe}/gate"
    np.testing.assert_array_equal(smaller[gate][1], weights[gate][1][:, [1, 2]])
    shared = f"{moe}/shared/wi"
    np.testing.assert_array_equal(smaller[shared], weights[shared])
    np.testing.assert_array_equal(smaller["target_embedding"][4], weights["target_embedding"][5])
