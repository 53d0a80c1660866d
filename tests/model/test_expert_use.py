"""The counts of the router, against NumPy on the logits of each layer."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import gating
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import StepFunctions
from tests.model.algorithm_1 import top2_gating
from tests.model.examples import ONE, SMALL, TWO, parameters, rows

LANGUAGES = 3
BATCH = rows([ONE, TWO], [TWO, TWO], [TWO], [ONE], length=8)
CROWDED = dataclasses.replace(SMALL, eval_capacity_factor=0.75)
GROUP = 16
"""Two rows share the capacity."""


def uses(model, batch=BATCH, p=None, group=GROUP) -> dict[str, np.ndarray]:
    steps = StepFunctions(model, Optimizer(), 50, 40, languages=LANGUAGES)
    (counts,) = steps.expert_use(parameters(model) if p is None else p, batch, (group, group))
    return {name: value.numpy() for name, value in counts.items()}


@pytest.fixture
def layers(monkeypatch):
    """Returns a list that gets the logits and the token mask of each layer while the model computes."""
    records, route = [], gating.route

    def recorded(tokens, gate, is_token, *arguments, **options):
        routing = route(tokens, gate, is_token, *arguments, **options)
        records.append((routing.logits.numpy(), is_token.numpy()))
        return routing

    monkeypatch.setattr("gshard_nmt.model.moe.route", recorded)
    return records


def oracle(logits, is_token, languages, routing) -> dict[str, np.ndarray]:
    """Counts the choices of one layer, token by token."""
    experts, choices = logits.shape[-1], 1 if routing == "switch" else 2
    gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    gates, is_token = gates.reshape(-1, experts), is_token.reshape(-1)
    chosen = np.zeros((LANGUAGES, choices, experts))
    weight, lost = np.zeros_like(chosen), np.zeros((LANGUAGES, 2))
    tokens = np.zeros(LANGUAGES)
    capacity = int(np.ceil(0.75 * GROUP / experts))
    taken = {}
    for start in range(0, len(gates), GROUP):
        group = slice(start, start + GROUP)
        if choices == 2:
            kept = top2_gating(gates[group], capacity, None, is_token[group]).triples
            taken |= {start + i: len(triples) for i, triples in enumerate(kept)}
        else:
            used = np.zeros(experts, int)
            for i in np.arange(len(gates))[group][is_token[group]]:
                taken[i] = int(used[gates[i].argmax()] < capacity)
                used[gates[i].argmax()] += 1
    for i in np.flatnonzero(is_token):
        language = languages.reshape(-1)[i] - 1
        best = np.argsort(-gates[i])[:choices]
        total = gates[i][best].sum() if choices == 2 else 1.0
        for a, expert in enumerate(best):
            chosen[language, a, expert] += 1
            weight[language, a, expert] += gates[i][expert] / total
        if taken[i] < choices:
            lost[language, choices - taken[i] - 1] += 1
        tokens[language] += 1
    return {"chosen": chosen, "weight": weight, "lost": lost, "tokens": tokens}


@pytest.mark.parametrize("change", [{}, {"routing": "switch"}, {"moe_every": 1}])
def test_the_counts_are_those_of_the_choices_of_each_token(change, layers):
    model = dataclasses.replace(CROWDED, **change)
    counts = uses(model)
    assert len(layers) == len(counts["tokens"]) == (6 if "moe_every" in change else 3)
    encoder_layers = len(layers) * 2 // 3
    for i, (logits, is_token) in enumerate(layers):
        side = "source" if i < encoder_layers else "target"
        languages = BATCH[f"{side}_languages"].numpy()
        expected = oracle(logits, is_token, languages, model.routing)
        for name, values in expected.items():
            np.testing.assert_allclose(counts[name][i], values, rtol=1e-5, err_msg=f"{name} {i}")
    assert counts["lost"].sum(axis=(0, 1)).all() or model.routing == "switch"


def test_the_choices_are_those_of_the_dispatch(layers):
    """All choices of a language that have a slot are its choices: nothing is dropped."""
    counts = uses(SMALL)
    rules = SMALL.moe_for_decoding().gating
    for i, (logits, is_token) in enumerate(layers):
        whole = dataclasses.replace(rules, capacity=logits.shape[1])
        routing = gating.assign(tf.constant(logits), tf.constant(is_token), whole)
        experts = routing.slot.numpy()[is_token] // routing.capacity
        expected = np.bincount(experts.reshape(-1), minlength=4)
        np.testing.assert_array_equal(counts["chosen"][i].sum(axis=(0, 1)), expected)


def test_the_lost_experts_are_those_of_evaluation():
    """In a model with one MoE layer, evaluation and the study see the same logits."""
    model = dataclasses.replace(CROWDED, encoder_layers=0, num_groups=2)
    steps = StepFunctions(model, Optimizer(), 50, 40, languages=LANGUAGES)
    _, metrics = steps._loss(parameters(model), BATCH, Mode())
    counts = uses(model)
    shares = counts["lost"][0] / np.maximum(counts["tokens"][0], 1)[:, np.newaxis]
    assert shares[:2].all()
    np.testing.assert_allclose(shares[:, 0], metrics["language_lost_one_expert"], rtol=1e-5)
    np.testing.assert_allclose(shares[:, 1], metrics["language_lost_both_experts"], rtol=1e-5)
    assert not uses(model, group=0)["lost"].any()
