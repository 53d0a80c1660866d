"""Computes the training loss: label-smoothed cross-entropy and z-loss, without padding."""

import dataclasses
from collections.abc import Callable

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.products import gradient_scope
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
    log_z = tf.reduce_logsumexp(logits, axis=-1)
    nll = log_z - _of_labels(logits, labels)
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


def _of_labels(logits: "tf.Tensor", labels: "tf.Tensor") -> "tf.Tensor":
    """Returns the logit of each label: [B, L, V], int32[B, L] -> [B, L].

    Logits are the largest array of a step, and a product with a one-hot array reads and writes all of
    them. The gradient of TensorFlow's gather is a scatter. Ours is one-hot, and XLA makes it where it
    makes that of the softmax.
    """
    scope = gradient_scope()

    @tf.custom_gradient
    def of(logits: "tf.Tensor") -> tuple["tf.Tensor", Callable]:
        def gradient(dy: "tf.Tensor") -> "tf.Tensor":
            with tf.name_scope(scope):
                is_label = labels[..., tf.newaxis] == tf.range(logits.shape[-1])
                return tf.where(is_label, dy[..., tf.newaxis], tf.zeros([], dy.dtype))

        return _gathered(logits, labels), gradient

    return of(logits)


def _gathered(logits: "tf.Tensor", labels: "tf.Tensor") -> "tf.Tensor":
    if tf.executing_eagerly():
        return tf.gather(logits, labels, batch_dims=2)
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops
    from tensorflow.compiler.xla import xla_data_pb2

    # TensorFlow's gather puts the numbers of rows and places beside the labels. In a pipeline, XLA's
    # partitioner ends the process there.
    dims = xla_data_pb2.GatherDimensionNumbers(
        collapsed_slice_dims=[2],
        start_index_map=[2],
        operand_batching_dims=[0, 1],
        start_indices_batching_dims=[0, 1],
        index_vector_dim=2,
    ).SerializeToString()
    of_labels = gen_xla_ops.xla_gather(logits, labels, [1, 1, 1], dims, indices_are_sorted=False)
    return tf.ensure_shape(of_labels, labels.shape)
