"""Both vocabularies of a run with a new language: which side gets what, and what it changes."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files
from gshard_nmt.data.batching.batches import dev_examples
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.vocabulary_growth import changed_lines, grown, pairs_of
from gshard_nmt.data.sets.corpus import CorpusPair, first_pairs, read_pairs
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import Vocabulary, source_tag, target_tag
from gshard_nmt.data.text.vocabulary_pair import SIDES

LINES = 200_000
"""The largest number of lines that new pieces are learned from."""

OLD_EXAMPLES = 4000
"""The examples of each old direction whose pieces are kept apart from new ones."""


@dataclasses.dataclass(frozen=True)
class Newcomer:
    """A new language, and the run that it is added to.

    Attributes:
      language: its BCP 47 tag.
      pairs: its text.
      directions: the source and target language of its directions.
      old_targets: the target languages of the run.
      config: the settings of data of the run.
      vocabularies: the folder with the vocabularies of the run.
      most: the largest number of new pieces of a vocabulary.
    """

    language: str
    pairs: Sequence[CorpusPair]
    directions: Sequence[tuple[str, str]]
    old_targets: set[str]
    config: Data
    vocabularies: Path
    most: int

    def tags(self) -> list[str]:
        """Returns the tags that its sources begin with. One of several target languages needs one."""
        targets = self.old_targets | {target for _, target in self.directions}
        is_target = any(target == self.language for _, target in self.directions)
        tags = [target_tag(self.language)] if is_target and len(targets) > 1 else []
        if self.config.language_tags and any(s == self.language for s, _ in self.directions):
            tags.append(source_tag(self.language))
        return tags

    def lines(self) -> list[str]:
        """Returns its training text."""
        lines = []
        for pair in self.pairs:
            side = int(pair.source != self.language)
            rows = read_pairs(pair, "train", pair.source, pair.target)
            lines += [row[side] for row in first_pairs(rows, LINES)]
        return lines


def grow_pair(
    new: Newcomer, data: PreparedData, folder: Path, say: Callable[..., Any]
) -> dict[str, Path]:
    """Writes both vocabularies into a folder, with new pieces on the sides that have the language.

    Args:
      new: the language.
      data: the prepared data of the run.
      folder: the folder for source.model and target.model.
      say: prints a line; it takes the options of rich.

    Returns:
      The files by side.

    Raises:
      UserError: a file is damaged, or a vocabulary cannot get new pieces.
    """
    lines, is_joint = new.lines(), new.config.vocabulary == "joint"
    models = {side: folder / name for side, name in zip(SIDES, VOCABULARIES, strict=True)}
    for side in SIDES[:1] if is_joint else SIDES:
        sides = SIDES if is_joint else (side,)
        is_used = any(new.language == d[SIDES.index(s)] for s in sides for d in new.directions)
        name = models[side].name
        old = Vocabulary.load(new.vocabularies / name)
        tags = new.tags() if side == "source" else []
        if not is_used and not tags:
            files.write(models[side], old.content)
            continue
        used = lines if is_used else []
        kept = _pairs_of_old_text(new.config, data, old, sides) if is_used else set()
        most = new.most if is_used else 0
        growth = grown(old, used, kept, tags, most, str(new.vocabularies / name))
        files.write(models[side], growth.vocabulary.content)
        if is_used:
            old_lines = _dev_lines(new.config, data, old, sides)
            changed = changed_lines(old, growth.vocabulary, old_lines)
            say(
                f"{name}: {old.size:,} pieces, and {len(growth.pieces)} new ones for {new.language}; its "
                f"text needs {growth.tokens / max(len(lines), 1):.1f} tokens a line instead of "
                f"{growth.tokens_before / max(len(lines), 1):.1f}. Of {len(old_lines):,} old dev lines, "
                f"{changed} are split in another way ({changed / max(len(old_lines), 1):.2%}).",
                markup=False,
                soft_wrap=True,
            )
    if is_joint:
        files.write(models["target"], models["source"].read_bytes())
    return models


def _pairs_of_old_text(
    config: Data, data: PreparedData, vocabulary: Vocabulary, sides: Sequence[str]
) -> set[str]:
    """Returns the pairs of pieces of a sample of the old training text."""
    texts: set[str] = set()
    for pair in data.pairs_of(config):
        count = pair.splits["train"].examples
        places = np.unique(np.linspace(0, count - 1, min(count, OLD_EXAMPLES)).astype(np.int64))
        examples = data.reader(pair, "train").read(places)
        for side in sides:
            ids = [getattr(example, side) for example in examples]
            texts |= pairs_of(vocabulary, np.concatenate(ids)) if ids else set()
    return texts


def _dev_lines(
    config: Data, data: PreparedData, vocabulary: Vocabulary, sides: Sequence[str]
) -> list[str]:
    """Returns the dev text of the old languages. The pieces were not learned with it."""
    examples = [e for pair in data.pairs_of(config) for e in dev_examples(data, pair, 0)]
    return vocabulary.decode([getattr(e, side).tolist() for side in sides for e in examples])
