"""The counts of the router, kept in `decodes/` of a run folder to be used again.

`SPLIT.routing.npz` has the arrays of `ExpertUse`, and what they depend on.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from gshard_nmt import files
from gshard_nmt.decoding.expert_use import ExpertUse
from gshard_nmt.decoding.runs import RULES_VERSION, Choices
from gshard_nmt.evaluation.routing_page import CountExperts
from gshard_nmt.evaluation.texts.translations import expected_checkpoint
from gshard_nmt.run.folder import RunFolder

_ARRAYS = ("tokens", "chosen", "weight", "lost", "left_out")


def keeping(count: CountExperts, split: str, choices: Choices) -> CountExperts:
    """Returns a function that counts as `count` does, but only if the run folder has no counts.

    Kept counts are used if the weights, the settings and the text are the same.

    Args:
      count: counts the choices of the router.
      split: the name of the test sets, such as "test".
      choices: the weights of the runs, and changed settings.
    """

    def count_or_load(path: Path, texts: Sequence[Sequence[Any]], checkpoint: str) -> ExpertUse:
        run = RunFolder(path)
        file = path / "decodes" / f"{split}.routing.npz"
        identity = _identity(run, texts, checkpoint, choices)
        use = load(file, identity)
        if use is None:
            use = count(path, texts, checkpoint)
            # A run that goes on training may have other weights now than those that were counted.
            if _identity(run, texts, checkpoint, choices) == identity:
                _store(file, identity, use)
        return use

    return count_or_load


def load(file: Path, identity: str) -> ExpertUse | None:
    """Returns kept counts; None if there are none, if they are damaged, or of another identity."""
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            if about["identity"] != identity:
                return None
            counts = {name: arrays[name] for name in _ARRAYS}
            return ExpertUse(layers=about["layers"], origin=about["origin"], **counts)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None


def store(file: Path, identity: str, use: ExpertUse) -> None:
    """Keeps counts for `load`.

    Raises:
      OSError: the file cannot be written.
    """
    about = {"identity": identity, "layers": list(use.layers), "origin": use.origin}
    content = io.BytesIO()
    arrays = {name: getattr(use, name) for name in _ARRAYS}
    np.savez_compressed(content, about=np.array(json.dumps(about)), **arrays)
    file.parent.mkdir(exist_ok=True)
    files.write(file, content.getvalue())


def _store(file: Path, identity: str, use: ExpertUse) -> None:
    try:
        store(file, identity, use)
    except OSError as error:
        note = f"{file} cannot be written ({error.strerror}), so these counts are not kept"
        Console(stderr=True, highlight=False, markup=False).print(
            note, markup=False, soft_wrap=True
        )


def _identity(
    run: RunFolder, texts: Sequence[Sequence[Any]], checkpoint: str, choices: Choices
) -> str:
    """Returns a digest of everything that the counts depend on."""
    facts = {
        "texts": [list(text) for text in texts],
        "checkpoint": expected_checkpoint(run, checkpoint),
        "config": choices.settings(run),
        "version of the decoding rules": RULES_VERSION,
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
