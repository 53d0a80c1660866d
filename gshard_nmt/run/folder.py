"""The run folder: what a training run keeps, and what decoding and evaluation read from it.

config.gin        the resolved configuration
parameters.txt    name, shape, dtype, sharding and bytes of every array
data.json         languages, direction, sizes and fingerprint of the data
source.model, target.model      the vocabularies
metrics.jsonl     one object a logged step
budget.json       tokens seen of each language, steps, seconds
tensorboard/  checkpoints/  programs/
"""

import dataclasses
import difflib
import functools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gshard_nmt import files
from gshard_nmt.errors import UserError
from gshard_nmt.settings.values import differences, read_config

if TYPE_CHECKING:
    from gshard_nmt.data.shards import PreparedData
    from gshard_nmt.data.vocabulary import Vocabulary
    from gshard_nmt.model.steps import StepFunctions
    from gshard_nmt.settings.config import Config


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """A run folder and its files.

    Attributes:
      path: the folder W.
    """

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration, gin text."""
        return self.path / "config.gin"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def programs(self) -> Path:
        """Folder of lowered and compiled programs; may be deleted, it is only a cache.

        The bilingual baselines of one run are one program, and share it.
        """
        siblings = self.path.parent
        shared = (siblings / "baselines.json").exists()
        return (siblings if shared else self.path) / "programs"

    @property
    def metrics(self) -> Path:
        """One JSON object a logged step."""
        return self.path / "metrics.jsonl"

    @functools.cached_property
    def data(self) -> dict[str, Any]:
        """What `data.json` says.

        Raises:
          UserError: the folder is no run.
        """
        file = self.path / "data.json"
        if not file.exists():
            raise UserError(
                f"{self.path} is not a run folder: it has no data.json. Give the --workdir of a "
                "gshard-train run."
            )
        return json.loads(file.read_text())

    def budget(self) -> dict[str, Any]:
        """Tokens seen of each language, steps and seconds; empty before the first checkpoint."""
        file = self.path / "budget.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a file of the folder so that a reader sees the old or the new one, never half."""
        self.write_text(name, json.dumps(value, indent=1, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """As `write_json`, for text."""
        files.write(self.path / name, text)

    def vocabularies(self) -> tuple["Vocabulary", "Vocabulary"]:
        """Source and target vocabulary."""
        from gshard_nmt.data.vocabulary import Vocabulary

        return (
            Vocabulary.load(self.path / "source.model"),
            Vocabulary.load(self.path / "target.model"),
        )

    def steps(self, config: "Config") -> "StepFunctions":
        """The programs of the run: the configured model over the run's vocabularies."""
        from gshard_nmt.model.steps import StepFunctions

        return StepFunctions(
            config.model,
            config.optimizer,
            self.data["source_vocabulary"],
            self.data["target_vocabulary"],
        )

    def only_language(self) -> str:
        """The source language of a run that has just one.

        Raises:
          UserError: it has several.
        """
        languages = self.source_languages()
        if len(languages) > 1:
            raise UserError(
                f"--lang is missing: this model translates from {_listed(languages)}; "
                "say which one the input is in."
            )
        return languages[0]

    def source_languages(self) -> list[str]:
        """Languages that the model translates from."""
        return sorted({pair["source"] for pair in self.data["pairs"]})

    def check_direction(self, source: str, target: str) -> str:
        """The target language of a translation from `source`; `target` may be "" where there is one.

        Raises:
          UserError: the model does not know the language, or the target is missing or unknown.
        """
        known = self.source_languages()
        if source not in known:
            raise UserError(_unknown("--lang", source, known, "translates from"))
        targets = sorted({p["target"] for p in self.data["pairs"] if p["source"] == source})
        if not target and len(targets) == 1:
            return targets[0]
        if not target:
            raise UserError(
                f"--target is missing: from {source} this model knows {_listed(targets)}."
            )
        if target not in targets:
            raise UserError(_unknown("--target", target, targets, f"translates from {source} to"))
        return target

    def claim(self, config: "Config", data: "PreparedData", write: bool = True) -> None:
        """Makes the folder this run's, or checks that it is a run of the same model and data.

        With `write` false it only checks, where another process writes.

        On resume the mesh, the number of processes and the number of steps may change; model,
        vocabulary and data may not.

        Raises:
          UserError: the folder holds another run, or something else.
        """
        fingerprint = data.manifest["corpus_fingerprint"]
        if (self.path / "data.json").exists():
            self._check_same(config, fingerprint)
        if not write:
            return
        if not (self.path / "data.json").exists() and self._has_files():
            raise UserError(
                f"--workdir {self.path} is not empty and not a run folder; "
                "choose a new folder, or empty this one."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        for name in ("source.model", "target.model"):
            shutil.copyfile(data.folder / name, self.path / name)
        self.write_text("config.gin", config.text)
        self.write_json("data.json", data.summary(config.data))

    def _has_files(self) -> bool:
        return self.path.exists() and any(self.path.iterdir())

    def _check_same(self, config: "Config", fingerprint: str) -> None:
        recorded = read_config(self.config)
        changed = [
            line
            for part in ("model", "data", "optimizer")
            for line in differences(getattr(recorded, part), getattr(config, part))
        ]
        if (before := self.data["corpus_fingerprint"]) != fingerprint:
            changed.append(f"the corpus: fingerprint {before}, now {fingerprint}")
        if changed:
            raise UserError(
                f"--workdir {self.path} was made with other settings:\n  "
                + "\n  ".join(changed)
                + "\nUse the config and data of that run, or another --workdir."
            )


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def _unknown(flag: str, given: str, known: list[str], verb: str) -> str:
    close = difflib.get_close_matches(given, known, 3, 0.4)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"{flag} {given}: this model {verb} {_listed(known)}.{hint}"
