"""The parts of a layer: together they are the MoE layer, and each takes what the one before returns."""

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.settings.config import find_config
from gshard_nmt.settings.gin_reader import load_config

SMALL = (
    *("Model.model_dim = 16", "Model.hidden_dim = 32", "Model.heads = 2", "Model.head_dim = 8"),
    *("Data.rows = 8", "Data.target_length = 12", "Model.num_groups = 4"),
    "Model.expert_hidden_dim = 32",
)


@pytest.fixture
def layer_parts(load):
    return load("harness.layer_parts")


def config(*settings: str):
    return load_config(str(find_config("demo")), [*SMALL, *settings])


@pytest.mark.parametrize("dispatch", ["gather", "einsum"])
def test_gating_dispatch_experts_and_combine_are_the_layer(layer_parts, dispatch):
    parts = layer_parts.parts(config(f"Model.dispatch = {dispatch!r}"))
    assert [part.name for part in parts] == [
        *("attention", "feed-forward", "gating", "dispatch", "experts", "combine"),
        *(layer_parts.LAYER, layer_parts.TRAINED_LAYER),
    ]
    arrays: dict = {}
    for part in parts[:-1]:
        missing = {name: spec for name, spec in part.inputs.items() if name not in arrays}
        arrays |= {n: tf.constant(v) for n, v in layer_parts.values(missing).items()}
        for name, spec in part.inputs.items():
            assert arrays[name].shape == spec.shape, name
        arrays |= part.function({name: arrays[name] for name in part.inputs})
    whole = np.asarray(arrays["y"])
    np.testing.assert_allclose(np.asarray(arrays["combined"]).reshape(whole.shape), whole, 1e-6)
    assert np.abs(whole).max() > 0.01
    assert np.abs(arrays["attended"]).max() > 0.01


def test_the_gradient_of_the_layer_has_the_shape_of_each_input(layer_parts):
    trained = layer_parts.parts(config())[-1]
    group = {n: tf.constant(v) for n, v in layer_parts.values(trained.inputs).items()}
    gradients = trained.function(group)
    assert gradients.keys() == trained.outputs.keys()
    for name, gradient in gradients.items():
        assert gradient.shape == trained.inputs[name.removeprefix("gradient/")].shape
        assert np.abs(gradient).max() > 0


def test_the_benchmark_measures_every_collective_and_part(load):
    collectives, growth, layer = load("layer").measured(config("Mesh.shape = (4,)"), 2, (1024,))
    for kind in ("all-to-all", "all-reduce", "all-gather", "collective-permute"):
        assert sum(line.startswith(f"| {kind}") for line in collectives.splitlines()) == 2
        assert kind in growth
    assert "MoE layer, forward and backward" in layer
