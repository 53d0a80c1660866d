"""What a step reports of its layers and languages, against NumPy and the algorithm as it is printed."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import figures, gating
from gshard_nmt.model.counter_random import Key
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import StepFunctions
from tests.model.algorithm_1 import top2_gating
from tests.model.examples import DENSE, ONE, SMALL, TWO, WITHOUT_DROPOUT, parameters, rows

LANGUAGES = 3
KEY = Key.from_seed(tf.constant([1, 2], tf.uint32))
BATCH = rows([ONE, TWO], [TWO, TWO], [TWO], [ONE], length=8)
# Half of the experts' usual room, so that tokens lose one or both of their experts.
CROWDED = dataclasses.replace(SMALL, second_expert="all", capacity_factor=0.75, num_groups=4)
WAYS = {
    "gather": {"dispatch": "gather"},
    "einsum": {"dispatch": "einsum"},
    "groups that are not rows": {"num_groups": 2},
    "recomputation": {"remat": "layer"},
    "one expert a token": {"routing": "switch"},
}


def metrics_of(model) -> dict[str, np.ndarray]:
    model = dataclasses.replace(model, **WITHOUT_DROPOUT)
    steps = StepFunctions(model, Optimizer(), 50, 40, languages=LANGUAGES)
    _, metrics = steps._loss(parameters(model), BATCH, Mode(KEY))
    return {name: value.numpy() for name, value in metrics.items()}


def decisions(model, monkeypatch) -> tuple[dict, list[tuple[np.ndarray, np.ndarray, int]]]:
    """Returns the metrics, and the logits, the token mask and the capacity of each MoE layer in order."""
    layers, assign = [], gating.assign

    def recorded(logits, is_token, rules, draw, keep):
        layers.append((logits.numpy(), is_token.numpy(), rules.slots(is_token.shape[1])))
        return assign(logits, is_token, rules, draw, keep)

    monkeypatch.setattr(gating, "assign", recorded)
    return metrics_of(model), layers


def lost_experts(gates, is_token, capacity, choices) -> np.ndarray:
    """Returns the number of experts that each token lost, int[G, S]."""
    lost = np.zeros(is_token.shape, int)
    for g, mask in enumerate(is_token):
        if choices == 2:
            admitted = [len(kept) for kept in top2_gating(gates[g], capacity, None, mask).triples]
        else:
            taken, admitted = np.zeros(gates.shape[-1], int), []
            for expert, is_one in zip(gates[g].argmax(-1), mask, strict=True):
                admitted.append(int(is_one and taken[expert] < capacity))
                taken[expert] += is_one
        lost[g] = np.where(mask, choices - np.array(admitted), 0)
    return lost


@pytest.mark.parametrize("way", WAYS)
def test_the_figures_are_those_of_the_gating_decisions(way, monkeypatch):
    model = dataclasses.replace(CROWDED, **WAYS[way])
    choices = 1 if way == "one expert a token" else 2
    metrics, layers = decisions(model, monkeypatch)
    names = figures.moe_layer_names(model)
    assert names == ["encoder_1", "encoder_3", "decoder_1"]
    assert len(layers) == len(names)
    lost_by_language = np.zeros((LANGUAGES, 3))
    visits = np.zeros(LANGUAGES)
    for i, (name, (logits, is_token, capacity)) in enumerate(zip(names, layers, strict=True)):
        gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        entropy = -(gates * np.log(gates)).sum(-1)[is_token].mean()
        assert metrics["layer_router_entropy"][i] == pytest.approx(entropy, rel=1e-4)
        load = np.bincount(gates.argmax(-1)[is_token], minlength=4) / is_token.sum()
        assert metrics["layer_busiest_expert"][i] == pytest.approx(4 * load.max(), rel=1e-5)
        effective = np.exp(-sum(share * np.log(share) for share in load if share))
        assert metrics["layer_effective_experts"][i] == pytest.approx(effective, rel=1e-5)
        lost = lost_experts(gates, is_token, capacity, choices)
        overflow = lost.sum() / (choices * is_token.sum())
        assert metrics["layer_overflow_fraction"][i] == pytest.approx(overflow, abs=1e-6)
        side = "source" if name.startswith("encoder") else "target"
        languages = BATCH[f"{side}_languages"].numpy().reshape(lost.shape)
        for language in range(LANGUAGES):
            of_language = lost[languages == language + 1]
            visits[language] += len(of_language)
            for number in (1, 2):
                lost_by_language[language, number] += (of_language == number).sum()
    shares = lost_by_language / np.maximum(visits, 1)[:, np.newaxis]
    assert shares[:2, 1].all(), "the batch is too small to lose experts"
    np.testing.assert_allclose(metrics["language_lost_one_expert"], shares[:, 1], atol=1e-6)
    np.testing.assert_allclose(metrics["language_lost_both_experts"], shares[:, 2], atol=1e-6)
    for name in ("router_entropy", "overflow_fraction", "busiest_expert"):
        assert metrics[name] == pytest.approx(metrics[f"layer_{name}"].mean(), rel=1e-5)


def test_the_loss_of_a_language_is_that_of_its_own_tokens():
    metrics = metrics_of(DENSE)
    tokens = metrics["language_target_tokens"]
    assert tokens.tolist() == [len(ONE[1]) * 2 + len(TWO[1]) * 2, len(TWO[1]) * 2, 0]
    total = (metrics["language_nll"] * tokens).sum()
    assert total == pytest.approx(metrics["nll"] * metrics["tokens"], rel=1e-5)
    assert metrics["language_nll"][2] == 0
    # The dense model's rows do not see each other, so a batch of one language alone has the same loss.
    steps = StepFunctions(DENSE, Optimizer(), 50, 40)
    sums, count = 0.0, 0.0
    for row in ([ONE], [TWO], [TWO], [ONE]):
        (one,) = steps.eval_step(parameters(DENSE), rows(row, length=8))
        sums, count = sums + float(one["nll_sum"]), count + float(one["tokens"])
    assert count == tokens[0]
    assert metrics["language_nll"][0] == pytest.approx(sums / count, rel=1e-4)


def test_the_totals_of_a_batch_weigh_its_microbatches_by_their_tokens():
    """The first microbatch has three tokens and the second one, in groups of two rows of two tokens."""
    segments = tf.constant([[[1, 1], [1, 0]], [[1, 0], [0, 0]]])
    # Entropy, choices without a slot, requests, and the load of two experts.
    totals = {
        "aux_loss": tf.constant([1.0, 2.0]),
        "z_loss": tf.constant([1.0, 2.0]),
        "by_layer": tf.zeros([2, 1, 4]),
        "lost_one": tf.constant([[[0.0, 1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0, 7.0]]]),
        "lost_both": tf.zeros([2, 1, 4]),
        "layer_sums": tf.constant([[[0.4, 1.0, 6.0, 0.0, 1.0]], [[0.8, 2.0, 2.0, 1.0, 0.0]]]),
    }
    joined = figures.of_batch(totals, segments)
    assert set(joined) == {*totals} - {"layer_sums"}
    assert float(joined["aux_loss"]) == 1.5
    assert float(joined["z_loss"]) == 1.25
    (row,) = joined["by_layer"].numpy()
    expected = {
        "router_entropy": 0.5,
        "overflow_fraction": 3 / 8,
        "busiest_expert": 1.5,
        "effective_experts": np.exp(-0.25 * np.log(0.25) - 0.75 * np.log(0.75)),
    }
    assert dict(zip(figures.LAYER_FIGURES, row, strict=True)) == pytest.approx(expected)
    np.testing.assert_array_equal(joined["lost_one"], [[0, 1], [4, 5], [2, 3], [6, 7]])
    assert figures.of_batch({}, segments) == {}
