"""What a benchmark tells a worker, as the one argument of its command line.

This module imports the standard library alone, because the peers do not have this package.
"""

import argparse
import dataclasses
import json
import os
from typing import Any, Self


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one process.

    Attributes:
      cores: the numbers of the cores. A process has one thread for each.
      folder: the folder of the files that a system keeps between two runs of the benchmark.
      settings: gin bindings, for this package only.
    """

    cores: tuple[int, ...]
    folder: str = ""
    settings: tuple[str, ...] = ()

    def as_argument(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_command_line(cls, description: str | None) -> Self:
        """Reads the job of this process, and keeps the process to its cores.

        Call it before any library starts its threads.
        """
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("job", help="the JSON text that the benchmark writes")
        fields = json.loads(parser.parse_args().job)
        job = cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()})
        os.sched_setaffinity(0, job.cores)
        return job


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelJob(Job):
    """A job with a model. All systems have models of the same sizes.

    Attributes:
      experts: the experts of every second layer; 0 for a dense model. Each token visits two.
      model_dim, hidden_dim: the width of the model, and that inside each feed-forward layer and expert.
      layers: the layers of the encoder, and of the decoder.
      heads: the attention heads of a layer.
      vocabulary: the tokens of the source, and of the target.
      precision: the precision of the arithmetic, for systems that have several.
    """

    experts: int = 0
    model_dim: int = 256
    hidden_dim: int = 1024
    layers: int = 4
    heads: int = 8
    vocabulary: int = 8000
    precision: str = "float32"

    @property
    def sizes(self) -> dict[str, Any]:
        return {
            "Model.encoder_layers": self.layers,
            "Model.decoder_layers": self.layers,
            "Model.model_dim": self.model_dim,
            "Model.hidden_dim": self.hidden_dim,
            "Model.heads": self.heads,
            "Model.head_dim": self.model_dim // self.heads,
            "Data.source_vocabulary": self.vocabulary,
            "Data.target_vocabulary": self.vocabulary,
        }
