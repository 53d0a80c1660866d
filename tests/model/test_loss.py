"""The training loss against its definition."""

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model.loss import token_loss


def test_the_loss_of_zero_logits_is_log_v_and_the_z_loss():
    is_token = tf.constant([[True, True, False]])
    result = token_loss(tf.zeros([1, 3, 7]), tf.constant([[2, 3, 0]]), is_token, 0.1, 1e-4)
    log_v = np.log(7)
    np.testing.assert_allclose(result.loss, log_v + 1e-4 * log_v**2, rtol=1e-6)
    np.testing.assert_allclose(result.nll, log_v, rtol=1e-6)
    assert float(result.tokens) == 2


def test_label_smoothing_equals_cross_entropy_with_the_smoothed_target():
    rng = np.random.default_rng(0)
    values, labels = rng.normal(size=(2, 3, 5)).astype("f"), rng.integers(0, 5, (2, 3), np.int32)
    result = token_loss(
        tf.constant(values), tf.constant(labels), tf.ones([2, 3], tf.bool), 0.2, 0.0
    )
    target = np.eye(5)[labels] * 0.8 + 0.2 / 5
    log_p = tf.nn.log_softmax(values).numpy()
    np.testing.assert_allclose(result.loss, -(target * log_p).sum(-1).mean(), rtol=1e-5)


def test_padding_changes_nothing_whatever_it_holds():
    """The loss of a row with padding is the loss of the row without it."""
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(1, 5, 7)).astype("f"), rng.integers(0, 7, (1, 5), np.int32)
    is_token = tf.constant([[True, True, True, False, False]])
    padded = token_loss(tf.constant(logits), tf.constant(labels), is_token, 0.1, 1e-2)
    short = token_loss(
        tf.constant(logits[:, :3]), tf.constant(labels[:, :3]), is_token[:, :3], 0.1, 1e-2
    )
    assert float(padded.loss) == pytest.approx(float(short.loss), rel=1e-6)
    assert float(padded.nll) == pytest.approx(float(short.nll), rel=1e-6)
    assert float(padded.tokens) == 3


def test_a_batch_of_padding_alone_has_no_loss():
    logits, labels = tf.zeros([2, 3, 5]), tf.zeros([2, 3], tf.int32)
    result = token_loss(logits, labels, tf.zeros([2, 3], tf.bool), 0.1, 1e-4)
    assert (float(result.loss), float(result.nll), float(result.tokens)) == (0, 0, 0)


def test_loss_and_gradient_are_those_of_the_formula_compiled_or_not():
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(2, 3, 7)), rng.integers(0, 7, (2, 3), np.int32)
    weight = np.array([[1, 1, 0], [1, 0, 1]])

    def loss_and_gradient(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = token_loss(logits, tf.constant(labels), tf.constant(weight > 0), 0.2, 1e-2).loss
        return loss, tape.gradient(loss, logits)

    log_z = np.log(np.exp(logits).sum(-1, keepdims=True))
    target = 0.8 * np.eye(7)[labels] + 0.2 / 7
    expected = np.exp(logits - log_z) * (1 + 2e-2 * log_z) - target
    expected *= weight[..., np.newaxis] / weight.sum()
    losses = log_z + 1e-2 * log_z**2 - (target * logits).sum(-1, keepdims=True)
    for function in (loss_and_gradient, tf.function(loss_and_gradient, jit_compile=True)):
        loss, gradient = function(tf.constant(logits.astype(np.float32)))
        assert float(loss) == pytest.approx((losses[..., 0] * weight).sum() / 4, rel=1e-5)
        np.testing.assert_allclose(gradient, expected, atol=1e-6)
