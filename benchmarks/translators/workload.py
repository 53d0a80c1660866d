"""What every translator of the benchmark translates, and the sizes of its model.

This module imports the standard library alone, because the peers do not have this package.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence

from harness.job import ModelJob


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workload(ModelJob):
    """The sizes of a model, and a batch of sentences to translate.

    Attributes:
      sentences: the number of sentences, which are one batch.
      parts: into how many parts a process divides the batch. It translates them at the same time, each
        with its share of the cores.
      source_tokens: the tokens of each source, end of sentence included.
      target_tokens: the tokens of each translation, which is also the number of decoder steps.
      beam: the hypotheses that a search keeps for each sentence.
    """

    sentences: int = 32
    parts: int = 1
    source_tokens: int = 24
    target_tokens: int = 32
    beam: int = 4

    def sources(self, end: int) -> list[list[int]]:
        rng = random.Random(1)
        ids = range(16, self.vocabulary)  # each system has special ids below 16
        return [[*rng.choices(ids, k=self.source_tokens - 1), end] for _ in range(self.sentences)]

    def checked(self, translate: Callable[[], Sequence[int]]) -> Callable[[], None]:
        def work() -> None:
            steps = set(translate())
            if steps != {self.target_tokens}:
                raise RuntimeError(
                    f"translations have {sorted(steps)} tokens, expected {self.target_tokens}"
                )

        return work
