"""What every trainer of benchmarks/training.py trains: the sizes of its model and batch.

This module imports the standard library alone, because the peers do not have this package.
"""

import dataclasses
import random

from harness.job import ModelJob


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload(ModelJob):
    """Training steps on one batch of random tokens without padding.

    Attributes:
      dropout: the rate for embeddings, the output of each sub-layer, and attention.
      steps: the training steps of one turn.
      devices: the devices among which this package divides the work.
      variant: of a peer: "compiled"; "released", with its known faults; "weights" or "products", for
        another way to bfloat16 than autocast.
      rows, length: the rows of a batch, and the tokens of a row on each side.
    """

    dropout: float = 0.1
    steps: int = 1
    devices: int = 1
    variant: str = ""
    rows: int = 32
    length: int = 64

    @property
    def places(self) -> int:
        return self.steps * self.rows * 2 * self.length

    def sentences(self, side: str) -> list[list[int]]:
        rng = random.Random(side)
        ids = range(16, self.vocabulary)  # each system has special ids below 16
        return [rng.choices(ids, k=self.length) for _ in range(self.rows)]


def checked(losses: list[float]) -> list[float]:
    if not losses[-1] < losses[0]:
        raise RuntimeError(f"the loss does not fall: {losses}")
    return losses
