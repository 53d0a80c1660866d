"""The exponential moving average of the weights, which a training step keeps up to date (`Train.ema`).

It is a part of the training state. Each of its arrays has the name, the shape and the letters of a
weight, so it is split over the devices as this weight is. It is float32, as all weights are.
"""

from collections.abc import Mapping

from gshard_nmt.model.lazy_tensorflow import tf


def moved(
    average: Mapping[str, "tf.Tensor"],
    weights: Mapping[str, "tf.Tensor"],
    decay: float,
    step: "tf.Tensor",
) -> dict[str, "tf.Tensor"]:
    """Returns the average after a step: d average + (1 - d) weights.

    The decay d of step t is min(decay, (1 + t) / (10 + t)), the rule of TensorFlow's
    tf.train.ExponentialMovingAverage with `num_updates`. So the average of an early step t covers about
    the last t / 9 steps, and the random weights of the beginning are soon forgotten.

    Args:
      average: the average before the step, with the names of the weights.
      decay: the decay of the settings, above 0 and below 1.
      step: int32[], 1 for the first.
    """
    # 1 - (1 + t) / (10 + t) is 9 / (10 + t). This form is exact also if d is close to 1.
    share = tf.maximum(1.0 - decay, 9.0 / (10.0 + tf.cast(step, tf.float32)))
    return {name: value + share * (weights[name] - value) for name, value in average.items()}
