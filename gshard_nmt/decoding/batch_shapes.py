"""The shapes of the batches that decoding translates: source lengths, search steps, rows."""

import dataclasses
import math

from gshard_nmt.settings.config import Config


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """The shape of a batch of sentences to translate.

    Attributes:
      source_length: L, tokens of a row, end of sentence included.
      max_steps: I, the number of search steps. A translation has at most this number of tokens.
    """

    source_length: int
    max_steps: int


def batch_shape(config: Config, source_length: int) -> BatchShape:
    """Returns the shape of the batches whose rows have `source_length` tokens, end included."""
    decode = config.decode
    steps = int(decode.length_ratio * source_length) + decode.length_margin
    return BatchShape(source_length, min(config.data.target_length, steps))


FEWEST_PRODUCT_ROWS = 64
"""The rows of a product, on each CPU device, are a multiple of this number.

XLA's kernels for CPUs add in another order if there are fewer rows, or if the last few rows of many are
left over. A translation would then depend on the number of rows."""


def least_rows(config: Config, is_cpu: bool, nbest: int = 1) -> int:
    """Returns the number of rows that a device must have at least, and of which it has a multiple.

    Args:
      config: the run.
      is_cpu: whether the devices are CPU devices.
      nbest: the number of samples of each sentence, if the method is sampling.
    """
    if not is_cpu:
        return 1
    hypotheses = nbest if config.decode.method == "sample" else config.decode.beam
    return FEWEST_PRODUCT_ROWS // math.gcd(FEWEST_PRODUCT_ROWS, hypotheses)


def batch_rows(config: Config, is_cpu: bool, nbest: int = 1) -> int:
    """Returns the rows of a batch: `Decode.rows`, rounded up.

    The rows divide over the mesh, and each device has a multiple of `least_rows`, whose arguments
    these are.
    """
    mesh = config.mesh
    unit = least_rows(config, is_cpu, nbest) * mesh.axis_size(mesh.partition("B")[0])
    return -(-config.decode.rows // unit) * unit
