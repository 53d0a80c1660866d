"""The training loss: label-smoothed cross-entropy and z-loss over real target tokens."""

import dataclasses

from gshard_nmt.model.lazy_tensorflow import tf


@dataclasses.dataclass(frozen=True)
class TokenLoss:
    """Means over the real target tokens of a batch.

    Attributes:
      loss: float32[], label-smoothed cross-entropy plus z-loss, in nats.
      nll: float32[], cross-entropy without smoothing, in nats.
      tokens: float32[], how many real target tokens.
    """

    loss: "tf.Tensor"
    nll: "tf.Tensor"
    tokens: "tf.Tensor"


def token_loss(
    logits: "tf.Tensor",
    labels: "tf.Tensor",
    real: "tf.Tensor",
    label_smoothing: float,
    z_loss_weight: float,
) -> TokenLoss:
    """Loss of logits float32[B, L, V] against labels int32[B, L] where real bool[B, L].

    The smoothed target is eps / V everywhere and 1 - eps more at the label. The denominator counts
    real tokens; the authors' code divides by the full size of the target tensor, padding included,
    which makes the loss depend on how well rows are packed.
    """
    vocabulary = logits.shape[-1]
    # A one-hot contraction rather than a gather: XLA fuses it, its gradient does not scatter, and its
    # indices do not overflow int32 on a pod.
    one_hot = tf.cast(labels[..., tf.newaxis] == tf.range(vocabulary), logits.dtype)
    log_z = tf.reduce_logsumexp(logits, axis=-1)
    nll = log_z - tf.reduce_sum(logits * one_hot, axis=-1)
    smoothed = nll
    if label_smoothing:
        flat = log_z - tf.reduce_mean(logits, axis=-1)
        smoothed = (1.0 - label_smoothing) * nll + label_smoothing * flat
    total = smoothed + z_loss_weight * tf.square(log_z)
    weight = tf.cast(real, logits.dtype)
    tokens = tf.reduce_sum(weight)
    denominator = tf.maximum(tokens, 1.0)
    return TokenLoss(
        tf.reduce_sum(total * weight) / denominator,
        tf.reduce_sum(nll * weight) / denominator,
        tokens,
    )
