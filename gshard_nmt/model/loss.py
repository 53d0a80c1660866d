"""Computes the training loss: label-smoothed cross-entropy and z-loss, without padding."""

import dataclasses

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd.sharding import annotate


@dataclasses.dataclass(frozen=True)
class TokenLoss:
    """The means over the target tokens of a batch; padding does not count."""

    # float32[], the label-smoothed cross-entropy plus the z-loss, in nats per token
    loss: "tf.Tensor"
    nll: "tf.Tensor"  # float32[], the cross-entropy without smoothing, in nats per token
    tokens: "tf.Tensor"  # float32[], the number of target tokens
    # float32[B, L], the cross-entropy of each token without smoothing, in nats
    token_nll: "tf.Tensor"


def token_loss(
    logits: "tf.Tensor",
    labels: "tf.Tensor",
    is_token: "tf.Tensor",
    label_smoothing: float,
    z_loss_weight: float,
) -> TokenLoss:
    """Returns the loss of a batch.

    The smoothed target distribution is (1 - eps) one_hot(label) + eps / V (Szegedy et al. 2016, section
    7). The z-loss is the squared logsumexp of the logits.

    We divide by the number of target tokens. We depart from the authors' code here: it divides by the
    full size of the target array with its padding, so its loss depends on how full the rows are.

    Args:
      logits: float32[B, L, V].
      labels: int32[B, L].
      is_token: bool[B, L], False for padding.
    """
    vocabulary = logits.shape[-1]
    # We contract with a one-hot array, which XLA fuses. We do not gather: the gradient of a gather is a
    # scatter, and the indices of a gather can overflow int32 on a pod.
    one_hot = tf.cast(labels[..., tf.newaxis] == tf.range(vocabulary), logits.dtype)
    log_z = tf.reduce_logsumexp(logits, axis=-1)
    nll = log_z - tf.reduce_sum(logits * one_hot, axis=-1)
    smoothed = nll
    if label_smoothing:
        uniform_nll = log_z - tf.reduce_mean(logits, axis=-1)
        smoothed = (1.0 - label_smoothing) * nll + label_smoothing * uniform_nll
    total = smoothed + z_loss_weight * tf.square(log_z)
    # The gate reads the same mask by groups. If the mesh splits groups finer than rows, the logits would
    # follow this split without the annotation, and be gathered for their product's gradient.
    weight = annotate(tf.cast(is_token, logits.dtype), "BL")
    tokens = tf.reduce_sum(weight)
    denominator = tf.maximum(tokens, 1.0)
    return TokenLoss(
        tf.reduce_sum(total * weight) / denominator,
        tf.reduce_sum(nll * weight) / denominator,
        tokens,
        nll,
    )
