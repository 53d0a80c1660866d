"""What a racer is told: the text, the sizes of the model, the number of updates, the cores."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

MODEL_DIM, HIDDEN_DIM, HEADS = 128, 512, 4
ENCODER_LAYERS, DECODER_LAYERS = 2, 2
VOCABULARY = 8000


@dataclasses.dataclass(frozen=True)
class Text:
    """The text of a race, the same for every racer.

    Attributes:
      folder: has the files SPLIT.SOURCE and SPLIT.en for train, dev and test; line N of two is a pair.
      source: the language to translate from, a BCP 47 tag. The other language is English.
      prepared: the same training text, prepared for this package.
      vocabulary: the SentencePiece model of both sides.
      fingerprint: changes if the text or the vocabulary does.
    """

    folder: Path
    source: str
    prepared: Path
    vocabulary: Path
    fingerprint: str

    def file(self, split: str, language: str) -> Path:
        return self.folder / f"{split}.{language}"

    def lines(self, split: str, language: str) -> list[str]:
        return self.file(split, language).read_text(encoding="utf-8").split("\n")[:-1]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A training run of a racer.

    Attributes:
      text: the text of the race.
      folder: the folder of the run, which exists.
      python: the interpreter that has the racer.
      cores: the number of cores, and of threads.
      updates: the number of updates to plan for. The run may be stopped before.
    """

    text: Text
    folder: Path
    python: str
    cores: int
    updates: int

    @property
    def log(self) -> Path:
        return self.folder / "race.log"

    def log_text(self) -> str:
        if not self.log.exists():
            return ""
        return self.log.read_text(encoding="utf-8", errors="replace")


class Racer(Protocol):
    """A system that trains: its recipe, the changes of a trial, and a seed.

    Attributes:
      changes: settings of the trial, by the names that the system has for them.
      seed: the seed of the run.
      name: the name in tables and flags, without spaces.
      requirements: the file with its packages; None if it is this package.
      stop_signal: the signal that makes it save a checkpoint and end.
      variables: what its processes have in their environment, beside OMP_NUM_THREADS.
    """

    changes: Mapping[str, Any]
    seed: int
    name: str
    requirements: Path | None
    stop_signal: int
    variables: Mapping[str, str]

    def command(self, plan: Plan) -> Sequence[str]:
        """Writes the configuration of a run; returns the command line that trains."""

    def updates(self, plan: Plan) -> int:
        """Returns the number of updates that the run has reported."""

    def validation_seconds(self, plan: Plan) -> float:
        """Returns the seconds that the run has spent in validations."""

    def checkpoints(self, plan: Plan) -> list[int]:
        """Returns the number of updates of each checkpoint that is complete."""

    def decoder(self, plan: Plan, step: int) -> Sequence[str]:
        """Returns the command line that translates stdin to stdout with the checkpoint of a step."""


def last_number(pattern: str, text: str) -> int:
    numbers = re.findall(pattern, text)
    return int(numbers[-1].replace(",", "")) if numbers else 0
