"""Run folders that were not trained here: an imported model, and a smaller model for some languages."""

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files, outputs
from gshard_nmt.data.config import SMALLEST_VOCABULARY
from gshard_nmt.data.language_codes import known_as
from gshard_nmt.data.sets.manifest import checksum
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.model.transformer import declare
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.folder import RunFolder, hash_of_settings
from gshard_nmt.settings.config import Config

Direction = tuple[str, str]
"""Source and target, as BCP 47 tags."""


def check_new(flag: str, folder: Path) -> None:
    """Raises UserError if a run folder cannot be made, or is there and not empty."""
    outputs.check_folder(flag, folder, replaced=True)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{flag} {folder} is not empty; give a new folder.")


def chosen_directions(directions: Sequence[Direction], languages: Sequence[str]) -> list[Direction]:
    """Returns the directions between the chosen languages; all if none is chosen.

    If all directions have the same source or the same target, this language need not be named.

    Raises:
      UserError: the model does not have a language, or no direction is left.
    """
    known = sorted({language for direction in directions for language in direction})
    languages = [known_as(code, known) or code for code in languages or known]
    for language in languages:
        if language not in known:
            raise UserError(
                f"--languages has {language}; this model has {', '.join(known)}"
                f"{did_you_mean(language, known)} Choose among these."
            )
    allowed = set(languages)
    for side in map(set, zip(*directions, strict=True)):
        allowed |= side if len(side) == 1 else set()
    chosen = [direction for direction in directions if set(direction) <= allowed]
    if not chosen:
        raise UserError(
            f"--languages is {','.join(languages)}, and the model translates in no direction between "
            "them. Give the source and the target language."
        )
    return chosen


def write_run(
    folder: Path,
    config: Config,
    vocabularies: Mapping[str, bytes],
    weights: Mapping[str, np.ndarray],
    facts: Mapping[str, Any],
) -> None:
    """Writes a run folder with one checkpoint, of step 0, into a folder that exists.

    The sizes of the vocabularies in the config are changed. `facts` are what data.json has besides.
    """
    run = RunFolder(folder)
    sizes = {f"{side}_vocabulary": Vocabulary(v).size for side, v in vocabularies.items()}
    # data.json has the true sizes, which may be smaller.
    config = config.replace(data={k: max(n, SMALLEST_VOCABULARY) for k, n in sizes.items()})
    run.write_text("config.gin", config.text)
    # There is no prepared data, so no training run can be resumed in this folder.
    identity = {"data": "", "config": hash_of_settings(config)}
    for side, content in vocabularies.items():
        files.write(folder / f"{side}.model", content)
        identity[f"{side}.model"] = checksum(folder / f"{side}.model")
    declared = declare(config.model, *sizes.values())
    letters = {"parameters": {name: p.letters for name, p in declared.items()}}
    with contextlib.closing(CheckpointWriter(run.checkpoints, identity=identity)) as writer:
        writer.save(0, {"parameters": dict(weights)}, letters, {})
    prepared = dataclasses.asdict(config.data)
    run.write_json("data.json", {**facts, "files": identity, **sizes, "prepared": prepared})
