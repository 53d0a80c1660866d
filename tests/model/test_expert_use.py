"""The counts of the router, against NumPy on the logits of each layer."""

import dataclasses

import numpy as np
import pytest

from gshard_nmt.model import gating
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import StepFunctions
from tests.model.examples import ONE, SMALL, TWO, parameters, rows

LANGUAGES = 3
BATCH = rows([ONE, TWO], [TWO, TWO], [TWO], [ONE], length=8)


def uses(model, batch=BATCH) -> dict[str, np.ndarray]:
    steps = StepFunctions(model, Optimizer(), 50, 40, languages=LANGUAGES)
    (counts,) = steps.expert_use(parameters(model), batch)
    return {name: value.numpy() for name, value in counts.items()}


def oracle(logits, is_token, languages, routing) -> dict[str, np.ndarray]:
    """Counts the choices of one layer, token by token."""
    experts, choices = logits.shape[-1], 1 if routing == "switch" else 2
    gates = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    gates, is_token = gates.reshape(-1, experts), is_token.reshape(-1)
    chosen, tokens = np.zeros((LANGUAGES, experts)), np.zeros(LANGUAGES)
    weight = np.zeros_like(chosen)
    for i in np.flatnonzero(is_token):
        language = languages.reshape(-1)[i] - 1
        best = np.argsort(-gates[i])[:choices]
        total = gates[i][best].sum() if choices == 2 else 1.0
        chosen[language, best] += 1
        weight[language, best] += gates[i][best] / total
        tokens[language] += 1
    return {"chosen": chosen, "weight": weight, "tokens": tokens}


@pytest.mark.parametrize("change", [{}, {"routing": "switch"}, {"moe_every": 1}])
def test_the_counts_are_those_of_the_choices_of_each_token(change, monkeypatch):
    layers, route = [], gating.route

    def recorded(tokens, gate, is_token, *arguments, **options):
        routing = route(tokens, gate, is_token, *arguments, **options)
        layers.append((tokens.numpy() @ gate.numpy(), is_token.numpy()))
        return routing

    monkeypatch.setattr("gshard_nmt.model.moe.route", recorded)
    model = dataclasses.replace(SMALL, **change)
    counts = uses(model)
    assert len(layers) == len(counts["tokens"]) == (6 if "moe_every" in change else 3)
    encoder_layers = len(layers) * 2 // 3
    for i, (logits, is_token) in enumerate(layers):
        side = "source" if i < encoder_layers else "target"
        languages = BATCH[f"{side}_languages"].numpy()
        for name, values in oracle(logits, is_token, languages, model.routing).items():
            np.testing.assert_allclose(counts[name][i], values, rtol=1e-5, err_msg=f"{name} {i}")
