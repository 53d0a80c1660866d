"""The layers that every Transformer shares, against their definitions."""

import math

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import counter_random, layers
from gshard_nmt.model.layers import Mode, declare_feed_forward, feed_forward, norm
from gshard_nmt.model.parameters import initial_values
from gshard_nmt.spmd.lowering import annotations_of
from gshard_nmt.spmd.mesh import Mesh

KEY = counter_random.Key.from_seed(tf.constant([3, 4], tf.uint32))


def test_rms_norm_ignores_scale_but_not_shift():
    x = tf.constant(np.random.default_rng(0).normal(size=(3, 16)), tf.float32)
    p = {"scale": tf.ones([16])}
    np.testing.assert_allclose(norm(p, x), norm(p, 7.0 * x), atol=1e-5)
    assert np.abs(norm(p, x) - norm(p, x + 1.0)).max() > 0.1


def test_the_gated_feed_forward_equals_its_definition():
    declared = declare_feed_forward(6, 10, "geglu")
    assert {name: p.shape for name, p in declared.items()} == {
        "wi": (6, 10),
        "wo": (10, 6),
        "wi_linear": (6, 10),
    }
    p = initial_values(declared, KEY)
    x = np.random.default_rng(1).normal(size=(1, 3, 6)).astype("f")
    a, b = x @ p["wi"].numpy(), x @ p["wi_linear"].numpy()
    gelu = 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))
    output = feed_forward(p, tf.constant(x), "geglu")
    np.testing.assert_allclose(output, (gelu * b) @ p["wo"].numpy(), rtol=1e-4, atol=1e-5)


def with_gradient(function, x, dy) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return y, tf.convert_to_tensor(tape.gradient(y, x, dy))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_the_gradient_of_relu_is_that_of_tensorflow(dtype):
    x = tf.constant([-3.0, -0.0, 0.0, 1e-30, 2.5, math.inf], dtype)
    dy = tf.constant([1.0, 2.0, 3.0, 4.0, -5.0, 6.0], dtype)
    results = (with_gradient(function, x, dy) for function in (layers.relu, tf.nn.relu))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_lookup_and_its_gradient_are_those_of_tensorflow():
    table = tf.random.stateless_normal([5, 3], [1, 2])
    ids = tf.constant([[4, 0, 4], [1, 4, 0]])
    dy = tf.random.stateless_normal([2, 3, 3], [3, 4])
    functions = (lambda t: layers.lookup({"e": t}, "e", ids), lambda t: tf.gather(t, ids))
    results = (with_gradient(function, table, dy) for function in functions)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_the_gradient_of_a_lookup_is_split_like_the_embedding():
    mesh = Mesh(("x", "y"), (4, 2), rules={"V": "y"}, shared_update=True)

    def gradient(table):
        ids = tf.cast(table[:3, 0], tf.int32)
        with tf.GradientTape() as tape:
            tape.watch(table)
            y = layers.lookup({"e": table}, "e", ids)
        return tape.gradient(y, table, y)

    assert annotations_of(gradient, (8, 4), mesh=mesh) == [
        "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"
    ]


def test_each_layer_and_each_use_has_random_numbers_of_its_own():
    x, mode = tf.ones([8, 8]), Mode(KEY)
    masks = [
        layers.dropout(x, 0.5, mode.named(layer), use).numpy()
        for layer in ("encoder/0", "encoder/1")
        for use in ("residual", "attention")
    ]
    for i, mask in enumerate(masks):
        assert all((mask != other).any() for other in masks[i + 1 :])
    again = layers.dropout(x, 0.5, mode.named("encoder").named("0"), "residual")
    np.testing.assert_array_equal(again, masks[0])


def test_the_sinusoids_of_the_paper_stop_before_the_longest_wavelength():
    """The angles of position p are p / 10000**(i / 4), for i = 0, 1, 2, 3."""
    angles = np.array([5])[:, np.newaxis] / 10_000 ** (np.arange(4) / 4)
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    encoded = layers.sinusoids(tf.constant([5]), 8, reaches_longest=False)
    np.testing.assert_allclose(encoded, expected, rtol=1e-4, atol=1e-5)


def test_a_layer_norm_subtracts_the_mean_and_adds_a_bias():
    """(1, 3, 5) has mean 3 and variance 8/3."""
    p = {"scale": tf.constant([1.0, 2.0, 1.0]), "bias": tf.constant([0.0, 7.0, 0.5])}
    normed = layers.norm(p, tf.constant([[1.0, 3.0, 5.0]]))
    deviation = np.sqrt(8 / 3 + 1e-5)
    np.testing.assert_allclose(normed, [[-2 / deviation, 7.0, 2 / deviation + 0.5]], rtol=1e-6)


@pytest.mark.parametrize(
    ("activation", "expected"), [("relu", 2.0), ("gelu", 1.954499736), ("swish", 1.761594156)]
)
def test_a_feed_forward_with_biases(activation, expected):
    """The hidden unit is 1.5 * 1 + 0.5 = 2, so the output is 3 f(2) - 1."""
    p = {"wi": [[1.5]], "wi_bias": [0.5], "wo": [[3.0]], "wo_bias": [-1.0]}
    p = {name: tf.constant(value) for name, value in p.items()}
    output = layers.feed_forward(p, tf.ones([1, 1, 1]), activation)
    np.testing.assert_allclose(output, [[[3 * expected - 1]]], rtol=1e-5)


def test_dropout_zeroes_its_share_and_keeps_the_mean_in_training_only():
    x = tf.ones([100, 100])
    dropped = layers.dropout(x, 0.25, Mode(KEY), "residual").numpy()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (dropped == 0).mean() == pytest.approx(0.25, abs=0.02)
    for untouched in (
        layers.dropout(x, 0.25, Mode(), "residual"),
        layers.dropout(x, 0.0, Mode(KEY), "residual"),
    ):
        np.testing.assert_array_equal(untouched, x)
