"""Which vocabularies the settings ask for: learned, joint, or existing files."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.sets.manifest import checksum
from gshard_nmt.data.text.vocabulary import (
    Vocabulary,
    VocabularySpec,
    reserved_symbols,
    source_tag,
    subset_tag,
    target_tag,
    with_tags,
)
from gshard_nmt.errors import UserError

Directions = Sequence[tuple[str, str]]
"""Source and target language of each direction of translation, as BCP 47 tags."""


def tags_of(config: Data, directions: Directions) -> tuple[str, ...]:
    """Returns the tags that source sentences may begin with: target and source languages, subsets."""
    tags: list[str] = []
    targets = {target for _, target in directions}
    if len(targets) > 1:
        tags += sorted(map(target_tag, targets))
    if config.language_tags:
        tags += sorted({source_tag(source) for source, _ in directions})
    return (*tags, *map(subset_tag, config.subset_tags))


def specs_of(config: Data, directions: Directions) -> dict[str, VocabularySpec]:
    """Returns each vocabulary to train, by side. A joint one has the side "source"."""
    is_joint = config.vocabulary == "joint"
    common = (config.vocabulary_model, config.character_coverage)
    source = VocabularySpec(
        config.source_vocabulary,
        *common,
        (*reserved_symbols(config.spare_tags), *tags_of(config, directions)),
        "identity" if is_joint else "nmt_nfkc",
    )
    if config.romanize_source:
        # Few characters are left, so signs and digits would be among the rarest.
        coverage = 1 - (1 - config.character_coverage) / 10
        source = dataclasses.replace(source, coverage=coverage, normalization="latin")
    specs = {
        "source": source,
        # The decoder writes text with all characters of the references.
        "target": VocabularySpec(config.target_vocabulary, *common, reserved_symbols(), "identity"),
    }
    if is_joint:
        del specs["target"]
    return {side: spec for side, spec in specs.items() if not _models(config)[side]}


def text_sides(config: Data, side: str) -> tuple[str, ...]:
    return SIDES if config.vocabulary == "joint" else (side,)


def existing_vocabularies(config: Data, directions: Directions) -> dict[str, bytes]:
    """Returns the contents of the existing models by side; spare tags get the names of missing ones.

    Raises:
      UserError: a file does not exist or does not fit, or it has too few spare tags.
    """
    contents = {}
    for side, model in _models(config).items():
        if not model:
            continue
        needs_tags = side == "source" or config.vocabulary == "joint"
        tags = tags_of(config, directions) if needs_tags else ()
        vocabulary = _load(side, model)
        named = with_tags(vocabulary, tags, f"Data.{side}_model = {model!r}")
        contents[side] = Path(model).read_bytes() if named is vocabulary else named.content
    return contents


def existing_models(config: Data) -> dict[str, str]:
    """Returns the SHA-256 of each existing model file, which is the same if data is up to date."""
    checksums = {}
    for side, model in _models(config).items():
        if model:
            _load(side, model)
            checksums[side] = checksum(Path(model))
    return checksums


def _models(config: Data) -> dict[str, str]:
    is_joint = config.vocabulary == "joint"
    return {
        "source": config.source_model,
        "target": config.source_model if is_joint else config.target_model,
    }


def _load(side: str, model: str) -> Vocabulary:
    path = Path(model)
    if not path.is_file():
        raise UserError(
            f"Data.{side}_model names {model}, but there is no such file. Give a SentencePiece model, or "
            f"leave the setting out to learn a vocabulary.",
            [f"Data.{side}_model"],
        )
    return Vocabulary.load(path)
