"""The test sentences of a direction, and their translations, all made with one checkpoint.

Translations are kept in `decodes/` of a run folder: `SPLIT.fr-en.txt` has one a line, and
`SPLIT.fr-en.json` says what they depend on, with the SHA-256 of the text. They are used again if the
checkpoint, the config, the test text and the rules of decoding are the same, and nobody edited them.
"""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files, json_shape
from gshard_nmt.data.sets.corpus import ENGLISH
from gshard_nmt.decoding.runs import RULES_VERSION, Choices
from gshard_nmt.json_shape import anything, fields, mapping_of, text
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.weights import Chosen, expected_label
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.terminal import Terminal

Translate = Callable[[Path, str, str, Sequence[str], str], tuple[list[str], str, str]]
"""(run folder, source language, target language, lines, --checkpoint) -> (translations, description,
checkpoint).

The description is a text with the step of the checkpoint and the settings of the search. The
checkpoint is the label of the weights, see `run/checkpoint/weights.py`. All
calls for one run folder use the same weights.
"""

_ABOUT = fields({"identity": mapping_of(anything()), "made_by": text(), "sha256": text()})


@dataclasses.dataclass(frozen=True)
class TestSet:
    """The test sentences of one direction."""

    language: str  # the language of the pair that is not English
    source: str  # BCP 47 tag
    target: str
    train_pairs: int  # number of examples that the run was trained on
    sources: list[str]  # the sentences to translate
    references: list[str]  # the reference of each
    other_references: tuple[list[str], ...] = ()  # further complete ones

    @property
    def direction_name(self) -> str:
        return f"{self.source}-{self.target}"

    @property
    def groups(self) -> list[str]:
        """Text by which a sentence is the same in several directions: English, else the reference."""
        return self.sources if self.source == ENGLISH and self.sources else self.references

    @property
    def all_references(self) -> list[list[str]]:
        return [self.references, *self.other_references]


@dataclasses.dataclass(frozen=True)
class Translations:
    """The translation of each source of a test set, and how they were made; see `Translate`."""

    lines: list[str]
    made_by: str


def translate_all(
    run: RunFolder,
    split: str,
    tests: Sequence[TestSet],
    translate: Translate,
    choices: Choices,
    advance: Callable[[], None] = lambda: None,
) -> list[Translations]:
    """Translates test sets, or reads their translations if the run folder has them already.

    The run may still be trained meanwhile. All translations are of the same checkpoint. `advance` is
    called after each test set.
    """
    folder = run.path / "decodes"

    def one(test: TestSet, checkpoint: str) -> tuple[Translations, str]:
        """Returns the translations of a test set, and the label of the checkpoint that made them."""
        name = f"{split}.{test.direction_name}"
        identity = {
            "sources": hashlib.sha256("\n".join(test.sources).encode()).hexdigest(),
            "checkpoint": checkpoint,
            "config": choices.settings(run),
            "version of the decoding rules": RULES_VERSION,
        }
        earlier = load(folder, name, identity)
        if earlier is not None and len(earlier.lines) == len(test.sources):
            return earlier, checkpoint
        words = (run.path, test.source, test.target, test.sources, choices.checkpoint)
        lines, made_by, used = translate(*words)
        translations = Translations(lines, made_by)
        try:
            store(folder, name, identity | {"checkpoint": used}, translations)
        except OSError as error:
            note = (
                f"{folder} cannot be written ({error.strerror}), so these translations are not kept"
            )
            Terminal(stderr=True).print(note)
        return translations, used

    checkpoints = Checkpoints.of(run, read_run_config(run.config).train)
    # Only manifests are read. If arrays are damaged, decoding may use another checkpoint.
    checkpoint = expected_label(checkpoints, Chosen.parse(choices.checkpoint))
    results: list[Translations] = []
    for number, test in enumerate(tests):
        translations, used = one(test, checkpoint)
        if used != checkpoint:
            # The run has saved a better checkpoint meanwhile, or the arrays of its best are damaged.
            checkpoint = used
            results = [one(earlier, checkpoint)[0] for earlier in tests[:number]]
        results.append(translations)
        advance()
    return results


def load(folder: Path, name: str, identity: Mapping[str, Any]) -> Translations | None:
    """Returns stored translations; None if there are none, they are damaged, or of another identity."""
    try:
        about = json_shape.parse((folder / f"{name}.json").read_bytes(), _ABOUT)
        lines = (folder / f"{name}.txt").read_bytes()
        if about["identity"] != identity or about["sha256"] != hashlib.sha256(lines).hexdigest():
            return None
        return Translations(lines.decode("utf-8").split("\n")[:-1], about["made_by"])
    except (OSError, ValueError):
        return None


def store(folder: Path, name: str, identity: Mapping[str, Any], translations: Translations) -> None:
    """Stores translations for `load`, under a name such as "test.fr-en"; their lines have no newlines.

    The identity is everything that they depend on. Raises OSError if a file cannot be written.
    """
    folder.mkdir(exist_ok=True)
    for path in (folder / f"{name}.txt", folder / f"{name}.json"):
        if os.path.islink(path):
            path.unlink()  # somebody else's run folder could have another file of the user written
    content = "".join(f"{line}\n" for line in translations.lines).encode()
    digest = hashlib.sha256(content).hexdigest()
    about = {"identity": identity, "made_by": translations.made_by, "sha256": digest}
    files.write(folder / f"{name}.txt", content)
    files.write_json(folder / f"{name}.json", about)
