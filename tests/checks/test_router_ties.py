"""Tokens that may go to other experts on a mesh than on one device, because of rounding."""

import types

import numpy as np
import pytest

from gshard_nmt.checks import equivalence, router_ties
from gshard_nmt.checks.router_ties import near_ties
from gshard_nmt.run.arrays import batch_specs, step_functions
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime

IS_TOKEN = np.arange(100).reshape(2, 50) % 50 < 40


def layer(ties: int = 0, difference: float = 1e-7, rank: int = 1):
    """Returns the logits of 8 experts for 80 tokens; padding has equal logits.

    In the first tokens, the choices of rank `rank` and `rank` + 1 are ties. The mesh has another logit.
    """
    logits = np.tile(np.linspace(0, 1, 8), (2, 50, 1)) * IS_TOKEN[..., np.newaxis]
    logits[0, :ties, 7 - rank] = logits[0, :ties, 8 - rank] - 1e-8
    logits[1, 0, 0] += difference
    return IS_TOKEN, logits


@pytest.mark.parametrize(
    ("on_one", "on_mesh", "expected"),
    [
        ([layer(), layer()], [layer(), layer(0, 2e-7)], ""),
        ([layer(), layer(3)], [layer(), layer(3, 2e-7)], "3 of 80 tokens"),
        ([layer(), layer(3, rank=2)], [layer(), layer(3, 2e-7, 2)], "3 of 80 tokens"),
        # The third choice of a token has no expert.
        ([layer(), layer(3, rank=3)], [layer(), layer(3, 2e-7, 3)], ""),
        # What follows a layer with ties says nothing.
        ([layer(1), layer()], [layer(1, 2e-7), layer(0, 0.5)], "1 of 80 tokens"),
        ([layer(), layer(1)], [layer(0, 0.5), layer(1)], ""),
        ([layer(1)], [layer(1, np.nan)], ""),
    ],
)
def test_ties_explain_a_difference_if_the_logits_are_equal(monkeypatch, on_one, on_mesh, expected):
    monkeypatch.setattr(router_ties, "_logits", lambda programs, batch: programs.layers)
    gating = types.SimpleNamespace(gating=types.SimpleNamespace(choices=2))
    model = types.SimpleNamespace(experts=8, moe=lambda training: gating)
    functions = types.SimpleNamespace(model=model, microbatches=1)
    one, mesh = (
        types.SimpleNamespace(functions=functions, layers=layers) for layers in (on_one, on_mesh)
    )
    assert near_ties(one, mesh, {}, 5e-5) == expected


def test_the_logits_of_each_layer_are_read():
    sizes = ["Model.encoder_layers = 1", "Model.decoder_layers = 2", "Model.moe_every = 1"]
    settings = [*sizes, "Model.stack = 'scan'", "Mesh.shape = (1,)"]
    config = equivalence.reduced_config(load_config("demo", settings), 1)
    programs = CompiledSteps(config, step_functions(config), runtime.start(config.mesh))
    batch = equivalence.random_batch(list(batch_specs(config)), config.data.rows)
    layers = router_ties._logits(programs, batch)
    assert len(layers) == 3
    for is_token, logits in layers:
        assert is_token.sum() == (batch["source_segments"] > 0).sum()
        assert (logits.max(axis=-1) > 0)[is_token].all()
        assert not logits[~is_token].any()
