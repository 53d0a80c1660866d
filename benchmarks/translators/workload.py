"""What every translator of the benchmark translates, and the sizes of its model.

This module imports the standard library alone, because the peers do not have this package.
"""

import argparse
import dataclasses
import json
import os
import random
from typing import Self


@dataclasses.dataclass(frozen=True)
class Workload:
    """The sizes of a model, a batch of sentences, and the cores to translate it on.

    Attributes:
      experts: the experts of every other layer; 0 for a dense model.
      sentences: the number of sentences, which are one batch.
      cores: the numbers of the cores. A process has one thread for each.
      precision: the precision of the arithmetic, for systems that have several.
      settings: gin bindings, for this package only.
      folder: the folder of the files that a system keeps between two runs of the benchmark.
      parts: into how many parts a process divides the batch. It translates them at the same time, each
        with its share of the cores.
      source_tokens: the tokens of each source, end of sentence included.
      target_tokens: the tokens of each translation, which is also the number of decoder steps.
    """

    experts: int
    sentences: int
    cores: tuple[int, ...]
    precision: str
    settings: tuple[str, ...]
    folder: str
    parts: int = 1
    source_tokens: int = 24
    target_tokens: int = 32
    beam: int = 4
    model_dim: int = 256
    hidden_dim: int = 1024
    layers: int = 4
    heads: int = 8
    vocabulary: int = 8000

    @property
    def tokens(self) -> int:
        """The target tokens of all translations."""
        return self.sentences * self.target_tokens

    def sources(self, end: int) -> list[list[int]]:
        """Returns the same random sentences for every system, int[sentences][source_tokens].

        Args:
          end: the id of the end of a sentence, which is the last token of each.
        """
        rng = random.Random(1)
        ids = range(16, self.vocabulary)  # each system has special ids below 16
        return [[*rng.choices(ids, k=self.source_tokens - 1), end] for _ in range(self.sentences)]

    def as_argument(self) -> str:
        """Returns the argument that `of_command_line` reads."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_command_line(cls, description: str | None) -> Self:
        """Reads the workload of this process, and keeps the process to its cores.

        Call it before any library starts its threads.
        """
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("workload", help="the JSON text that benchmarks/decoding.py writes")
        fields = json.loads(parser.parse_args().workload)
        workload = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
        os.sched_setaffinity(0, workload.cores)
        return workload
