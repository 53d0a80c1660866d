"""The translations of the test sets of a run, all made with one checkpoint.

They are kept in the run folder, and used again if the checkpoint, the config and the text are the same.
The run may still be trained while it is evaluated.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from gshard_nmt.evaluation import decodes
from gshard_nmt.run.checkpoint import Checkpoints
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.manifest import UnsoundError
from gshard_nmt.run.retention import Retention
from gshard_nmt.settings.changes import Changes
from gshard_nmt.settings.config import differences
from gshard_nmt.settings.values import read_run_config

Translate = Callable[[Path, str, str, Sequence[str]], tuple[list[str], str, str]]
"""(run folder, source language, target language, lines) -> (translations, description, checkpoint).

The description is a text with the step of the checkpoint and the settings of the search. The checkpoint
is the `label` of its manifest. All calls for one run folder use the same checkpoint.
"""


@dataclasses.dataclass(frozen=True)
class TestSet:
    """The test sentences of one direction.

    Attributes:
      language: the language of the pair that is not English.
      source, target: BCP 47 tags of the direction.
      train_pairs: number of examples that the run was trained on.
      sources, references: the sentences to translate, and the reference of each.
    """

    language: str
    source: str
    target: str
    train_pairs: int
    sources: list[str]
    references: list[str]


@dataclasses.dataclass(frozen=True)
class Translations:
    """The translations of a test set.

    Attributes:
      lines: the translation of each source.
      made_by: the description of how they were made, as `Translate` returns it.
    """

    lines: list[str]
    made_by: str


def translate_all(
    run: RunFolder,
    split: str,
    tests: Sequence[TestSet],
    translate: Translate,
    advance: Callable[[], None] = lambda: None,
    changes: Changes | None = None,
) -> list[Translations]:
    """Translates test sets, or reads their translations if the run folder has them already.

    Args:
      run: the run.
      split: the name of the split of all test sets.
      tests: the test sets.
      translate: translates lines with a checkpoint of the run.
      advance: is called after each test set.
      changes: the settings that `translate` uses instead of those of the run. Translations are the same
        on every mesh, so only changes of Decode make them other translations.

    Returns:
      The translations of each test set. All of them are of the same checkpoint.
    """
    checkpoint = _best_checkpoint(run)
    config = _identity_of(run, changes or Changes())
    results: list[Translations] = []
    for number, test in enumerate(tests):
        translations, used = _translate(run, split, test, translate, checkpoint, config)
        if used != checkpoint:
            # The run has saved a better checkpoint meanwhile, or the arrays of its best are damaged.
            checkpoint = used
            results = [
                _translate(run, split, earlier, translate, checkpoint, config)[0]
                for earlier in tests[:number]
            ]
        results.append(translations)
        advance()
    return results


def _identity_of(run: RunFolder, changes: Changes) -> str:
    """Returns the settings that translations depend on, as text: those of the run, and the changes."""
    text = run.config.read_text(encoding="utf-8")
    config = read_run_config(run.config)
    new = differences(config.decode, changes.apply(config).decode)
    return "\n".join([text, *new]) if new else text


def _translate(
    run: RunFolder, split: str, test: TestSet, translate: Translate, checkpoint: str, config: str
) -> tuple[Translations, str]:
    """Returns the translations of a test set, and the label of the checkpoint that made them.

    Translations that were kept are used if they are of this checkpoint and these settings.
    """
    folder, name = run.path / "decodes", f"{split}.{test.source}-{test.target}"
    identity = {
        "sources": hashlib.sha256("\n".join(test.sources).encode()).hexdigest(),
        "checkpoint": checkpoint,
        "config": config,
    }
    earlier = decodes.load(folder, name, identity)
    if earlier is not None and len(earlier[0]) == len(test.sources):
        return Translations(*earlier), checkpoint
    lines, made_by, used = translate(run.path, test.source, test.target, test.sources)
    try:
        decodes.store(folder, name, identity | {"checkpoint": used}, lines, made_by)
    except OSError as error:
        console = Console(stderr=True, highlight=False)
        note = f"{folder} cannot be written ({error.strerror}), so these translations are not kept"
        console.print(note, markup=False, soft_wrap=True)
    return Translations(lines, made_by), used


def _best_checkpoint(run: RunFolder) -> str:
    """Returns the label of the checkpoint that decoding tries first; "" if there is none.

    Only its manifest is read. If its arrays are damaged, decoding uses another one.
    """
    rules = Retention.of(read_run_config(run.config).train)
    checkpoints = Checkpoints(run.checkpoints, rules, run.identity())
    for step in checkpoints.best_first():
        with contextlib.suppress(UnsoundError):
            return checkpoints.manifest(step).label
    return ""
