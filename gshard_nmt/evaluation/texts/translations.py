"""The translations of the test sets of a run, all made with one checkpoint.

They are kept in the run folder, and used again if the checkpoint, the config, the text and the rules of
decoding are the same.
The run may still be trained while it is evaluated.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from gshard_nmt.data.sets.corpus import ENGLISH
from gshard_nmt.decoding.runs import RULES_VERSION, Choices
from gshard_nmt.evaluation.texts import decodes
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.retention import Retention
from gshard_nmt.run.checkpoint.weights import Chosen, expected_label
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config

Translate = Callable[[Path, str, str, Sequence[str], str], tuple[list[str], str, str]]
"""(run folder, source language, target language, lines, --checkpoint) -> (translations, description,
checkpoint).

The description is a text with the step of the checkpoint and the settings of the search. The
checkpoint is the label of the weights, see `run/checkpoint/weights.py`. All
calls for one run folder use the same weights.
"""


@dataclasses.dataclass(frozen=True)
class TestSet:
    """The test sentences of one direction.

    Attributes:
      language: the language of the pair that is not English.
      source, target: BCP 47 tags of the direction.
      train_pairs: number of examples that the run was trained on.
      sources, references: the sentences to translate, and the reference of each.
      other_references: further complete references, if there are several.
    """

    language: str
    source: str
    target: str
    train_pairs: int
    sources: list[str]
    references: list[str]
    other_references: tuple[list[str], ...] = ()

    @property
    def direction_name(self) -> str:
        """The direction as users write it, such as "fr-en"."""
        return f"{self.source}-{self.target}"

    @property
    def groups(self) -> list[str]:
        """Text by which a sentence is the same in several directions: English, else the reference."""
        return self.sources if self.source == ENGLISH and self.sources else self.references

    @property
    def all_references(self) -> list[list[str]]:
        """The references, each with a line for each source."""
        return [self.references, *self.other_references]


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
    choices: Choices | None = None,
) -> list[Translations]:
    """Translates test sets, or reads their translations if the run folder has them already.

    Args:
      run: the run.
      split: the name of the split of all test sets.
      tests: the test sets.
      translate: translates lines with a checkpoint of the run.
      advance: is called after each test set.
      choices: what the user has chosen.

    Returns:
      The translations of each test set. All of them are of the same checkpoint.
    """
    choices = choices or Choices()
    checkpoint = expected_checkpoint(run, choices.checkpoint)
    results: list[Translations] = []
    translate_with_it = functools.partial(_translate, run, split, translate, choices)
    for number, test in enumerate(tests):
        translations, used = translate_with_it(test, checkpoint)
        if used != checkpoint:
            # The run has saved a better checkpoint meanwhile, or the arrays of its best are damaged.
            checkpoint = used
            results = [translate_with_it(earlier, checkpoint)[0] for earlier in tests[:number]]
        results.append(translations)
        advance()
    return results


def _translate(
    run: RunFolder,
    split: str,
    translate: Translate,
    choices: Choices,
    test: TestSet,
    checkpoint: str,
) -> tuple[Translations, str]:
    """Returns the translations of a test set, and the label of the checkpoint that made them.

    Translations that were kept are used if they are of this checkpoint and these settings.
    """
    folder, name = run.path / "decodes", f"{split}.{test.source}-{test.target}"
    identity = {
        "sources": hashlib.sha256("\n".join(test.sources).encode()).hexdigest(),
        "checkpoint": checkpoint,
        "config": choices.settings(run),
        "version of the decoding rules": RULES_VERSION,
    }
    earlier = decodes.load(folder, name, identity)
    if earlier is not None and len(earlier[0]) == len(test.sources):
        return Translations(*earlier), checkpoint
    lines, made_by, used = translate(
        run.path, test.source, test.target, test.sources, choices.checkpoint
    )
    try:
        decodes.store(folder, name, identity | {"checkpoint": used}, lines, made_by)
    except OSError as error:
        console = Console(stderr=True, highlight=False, markup=False)
        note = f"{folder} cannot be written ({error.strerror}), so these translations are not kept"
        console.print(note, markup=False, soft_wrap=True)
    return Translations(lines, made_by), used


def expected_checkpoint(run: RunFolder, choice: str) -> str:
    """Returns the label of the weights that decoding tries first; "" if there are none.

    Only manifests are read. If arrays are damaged, decoding may use another checkpoint.
    """
    rules = Retention.of(read_run_config(run.config).train)
    return expected_label(Checkpoints(run.checkpoints, rules, run.identity()), Chosen.parse(choice))
