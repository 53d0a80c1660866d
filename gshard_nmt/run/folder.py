"""The run folder: the files that a training run keeps, and that decoding and evaluation read.

config.gin        the resolved configuration
parameters.txt    name, shape, dtype, sharding and bytes of every array
data.json         languages, directions, vocabulary sizes and fingerprint of the prepared data
source.model, target.model      the vocabularies
metrics.jsonl     one JSON object for each logged step
budget.json       tokens seen of each language, steps, seconds
tensorboard/  checkpoints/  programs/
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gshard_nmt import files
from gshard_nmt.errors import UserError
from gshard_nmt.settings.config import Config, differences
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.suggest import did_you_mean

if TYPE_CHECKING:
    from gshard_nmt.data.shards import PreparedData
    from gshard_nmt.data.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """A run folder and its files.

    Attributes:
      path: the folder, `--workdir`.
    """

    path: Path

    @property
    def config(self) -> Path:
        """Path of the resolved configuration, gin text."""
        return self.path / "config.gin"

    @property
    def checkpoints(self) -> Path:
        """Path of the folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def programs(self) -> Path:
        """Path of the folder of lowered and compiled programs. It is a cache and may be deleted.

        The bilingual baselines of one run have equal programs, so they share one folder.
        """
        parent = self.path.parent
        shared = (parent / "baselines.json").exists()
        return (parent if shared else self.path) / "programs"

    @property
    def metrics(self) -> Path:
        """Path of the log: one JSON object for each logged step."""
        return self.path / "metrics.jsonl"

    @functools.cached_property
    def data(self) -> dict[str, Any]:
        """The contents of `data.json`.

        Raises:
          UserError: the folder is not a run folder.
        """
        file = self.path / "data.json"
        if not file.exists():
            raise UserError(
                f"{self.path} is not a run folder: it has no data.json. Give the --workdir of a "
                "gshard-train run."
            )
        return json.loads(file.read_text())

    def budget(self) -> dict[str, Any]:
        """Returns the contents of `budget.json`, or {} before the first checkpoint."""
        file = self.path / "budget.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a file of the folder. A reader sees the old file or the new one, never a part."""
        self.write_text(name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Writes a text file, as `write_json` does."""
        files.write(self.path / name, text)

    def vocabularies(self) -> tuple["Vocabulary", "Vocabulary"]:
        """Loads the source and the target vocabulary."""
        from gshard_nmt.data.vocabulary import Vocabulary

        return (
            Vocabulary.load(self.path / "source.model"),
            Vocabulary.load(self.path / "target.model"),
        )

    def direction(self, source: str, target: str) -> tuple[str, str]:
        """Returns the source and target language of a request to translate.

        Args:
          source: BCP 47 tag; "" if the model translates from one language only.
          target: BCP 47 tag; "" if the model translates to one language only.

        Raises:
          UserError: the model does not know the direction, or a language is missing.
        """
        sources = sorted({pair["source"] for pair in self.data["pairs"]})
        if not source and len(sources) > 1:
            raise UserError(
                f"--lang is missing: this model translates from {', '.join(sources)}; "
                "say which of them the input is in."
            )
        source = source or sources[0]
        if source not in sources:
            raise UserError(_unknown("--lang", source, sources, "translates from"))
        targets = sorted({p["target"] for p in self.data["pairs"] if p["source"] == source})
        if not target and len(targets) > 1:
            raise UserError(
                f"--target is missing: from {source} this model translates to "
                f"{', '.join(targets)}; choose one of them."
            )
        target = target or targets[0]
        if target not in targets:
            raise UserError(_unknown("--target", target, targets, f"translates from {source} to"))
        return source, target

    def claim(self, config: Config, data: "PreparedData", write: bool = True) -> None:
        """Makes the folder of a new run, or checks that it holds a run of the same model and data.

        When a run is resumed, the mesh, the number of processes and the number of steps may change.
        The model, the vocabularies and the data may not.

        Args:
          config: the run.
          data: its prepared data.
          write: whether to write the files. Only the first process does; the others only check.

        Raises:
          UserError: the folder holds another run, or other files.
        """
        fingerprint = data.manifest["corpus_fingerprint"]
        if (self.path / "data.json").exists():
            self._check_same(config, fingerprint)
        if not write:
            return
        if not (self.path / "data.json").exists() and self._has_files():
            raise UserError(
                f"--workdir {self.path} has files in it and is not a run folder; "
                "choose a new folder, or empty this one."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        for name in ("source.model", "target.model"):
            files.write(self.path / name, (data.folder / name).read_bytes())
        self.write_text("config.gin", config.text)
        self.write_json("data.json", data.summary(config.data))

    def _has_files(self) -> bool:
        return self.path.exists() and any(self.path.iterdir())

    def _check_same(self, config: Config, fingerprint: str) -> None:
        recorded = read_run_config(self.config)
        changed = [
            line
            for part in ("model", "data", "optimizer")
            for line in differences(getattr(recorded, part), getattr(config, part))
        ]
        if (recorded_fingerprint := self.data["corpus_fingerprint"]) != fingerprint:
            changed.append(f"the corpus: fingerprint {recorded_fingerprint}, now {fingerprint}")
        if changed:
            raise UserError(
                f"--workdir {self.path} was made with other settings:\n  "
                + "\n  ".join(changed)
                + "\nUse the config and data of that run, or another --workdir."
            )


def _unknown(flag: str, language: str, known: Sequence[str], verb: str) -> str:
    return (
        f"{flag} {language}: this model {verb} {', '.join(known)}{did_you_mean(language, known)} "
        "Choose one of these."
    )
