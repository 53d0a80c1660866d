"""Counts the tokens of a run on the devices, by language, and estimates the step at which it ends.

A run may see more tokens than 32 bits can count, and jax has no arrays of 64 bits by default. The
training state therefore holds each count as two words, uint32[..., 2], the low word first. Inside a
program the counts are int64.
"""

from collections.abc import Mapping

from gshard_nmt.model.lazy_tensorflow import tf

SIDES = ("source", "target")
_LOW_WORD = 2**32 - 1


def to_numbers(words: "tf.Tensor") -> "tf.Tensor":
    """Returns the numbers int64[...] of uint32[..., 2], which must be below 2**63."""
    low, high = tf.cast(words[..., 0], tf.int64), tf.cast(words[..., 1], tf.int64)
    return high * tf.constant(2**32, tf.int64) + low


def to_words(numbers: "tf.Tensor") -> "tf.Tensor":
    """Returns uint32[..., 2], the low and the high word of numbers int64[...] that are 0 or more."""
    low = tf.bitwise.bitwise_and(numbers, tf.constant(_LOW_WORD, tf.int64))
    high = tf.bitwise.right_shift(numbers, tf.constant(32, tf.int64))
    return tf.stack([tf.cast(low, tf.uint32), tf.cast(high, tf.uint32)], axis=-1)


def one_hot_languages(languages: "tf.Tensor", number: int) -> "tf.Tensor":
    """Returns bool[..., languages]: whether each token is of each language.

    Args:
      languages: int32[...], 1 + the index of the language of each token; 0 is padding.
    """
    return languages[..., tf.newaxis] == tf.range(1, number + 1)


def count(batch: Mapping[str, "tf.Tensor"], number: int) -> "tf.Tensor":
    """Returns int64[languages], the source and target tokens of each language in a batch.

    `batch` has `source_languages` and `target_languages`, int32[B, L]. `number` is the number of
    languages of the run.
    """
    return tf.cast(tf.add_n([count_side(batch, side, number) for side in SIDES]), tf.int64)


def count_side(batch: Mapping[str, "tf.Tensor"], side: str, number: int) -> "tf.Tensor":
    """Returns int32[languages], the tokens of each language on one side: "source" or "target"."""
    is_language = one_hot_languages(batch[f"{side}_languages"], number)
    return tf.reduce_sum(tf.cast(is_language, tf.int32), [0, 1])


def last_step(
    step: "tf.Tensor", tokens: "tf.Tensor", max_steps: "tf.Tensor", max_tokens: "tf.Tensor"
) -> "tf.Tensor":
    """Estimates at which step a run ends, int32[], from its mean number of tokens per step so far.

    Args:
      step: int32[], the number of steps done.
      tokens: int64[], the number of tokens seen in these steps.
      max_steps: int32[], Train.steps.
      max_tokens: int64[], Train.tokens; 0 means no limit.
    """
    left = tf.cast(tf.maximum(max_tokens - tokens, 0), tf.float32)
    tokens_per_step = tf.cast(tokens, tf.float32) / tf.cast(tf.maximum(step, 1), tf.float32)
    # In float32 a whole number of steps may come out slightly too large, and one step more would be
    # counted. The margin is several times the rounding error.
    steps_left = tf.math.ceil(left / tf.maximum(tokens_per_step, 1.0) * (1.0 - 2.0**-21))
    estimate = step + tf.cast(tf.minimum(steps_left, 2.0**30), tf.int32)
    is_bounded = (max_tokens > 0) & (tokens > 0)
    return tf.where(is_bounded, tf.minimum(max_steps, estimate), max_steps)
