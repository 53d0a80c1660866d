"""Run folders that were not trained here: an imported model, and a smaller model for some languages.

A smaller model lacks rows of the vocabulary that its languages do not use. A BPE vocabulary splits a word
by merges, so the pieces that a merge passes through stay too. Then all text that the cut was made with is
split as before, and its tokens have the same embeddings.
"""

import contextlib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gshard_nmt import files
from gshard_nmt.data.config import SMALLEST_VOCABULARY
from gshard_nmt.data.language_codes import known_as
from gshard_nmt.data.preparation.vocabulary_growth import merge
from gshard_nmt.data.sets.manifest import checksum
from gshard_nmt.data.text.vocabulary import (
    SPACE,
    SPECIALS,
    Vocabulary,
    first_tag,
    model_proto,
    source_tag,
    target_tag,
)
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.model.transformer import declare
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.folder import RunFolder, hash_of_settings
from gshard_nmt.settings.config import Config

Direction = tuple[str, str]
"""Source and target, as BCP 47 tags."""


def chosen_directions(directions: Sequence[Direction], languages: Sequence[str]) -> list[Direction]:
    """Returns the directions between the chosen languages; all if none is chosen.

    If all directions have the same source or the same target, this language need not be named. Raises
    UserError if the model does not have a language, or no direction is left.
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
    prepared = config.data.shaping()
    run.write_json("data.json", {**facts, "files": identity, **sizes, "prepared": prepared})


def used_ids(vocabulary: Vocabulary, texts: Iterable[Sequence[str]]) -> set[int]:
    """Returns the ids that occur in blocks of lines, with the ids that their merges pass through.

    The ids of single characters in the text are among them, so that new words have few bytes.
    """
    used: set[int] = set()
    # Spelled in bytes, SentencePiece's space would not become a space again.
    characters = {SPACE}
    for lines in texts:
        for line, ids in zip(lines, vocabulary.encode(lines), strict=True):
            used.update(ids)
            characters.update(line)
    scores = {piece: score for piece, (_, score) in vocabulary.subwords.items()}
    pieces = [piece for piece in vocabulary.pieces(sorted(used)) if piece in scores]
    # A vocabulary may replace characters before it splits a text.
    characters.update(itertools.chain.from_iterable(pieces))
    needed = {character for character in characters if character in scores}
    if vocabulary.algorithm == "bpe":
        for piece in pieces:
            needed |= merge(list(piece), scores)
    return used | {vocabulary.subwords[piece][0] for piece in needed}


def kept_ids(
    vocabulary: Vocabulary, used: Collection[int], dropped_languages: Collection[str]
) -> np.ndarray:
    """Returns the ids that stay, int64[V'], in rising order.

    Special ids, bytes and all tags stay, but those of languages that are dropped.
    """
    kinds = (source_tag, target_tag, first_tag)
    tags = {tag(language) for language in dropped_languages for tag in kinds}
    kept = [
        i
        for i, (kind, piece) in enumerate(vocabulary.keys())
        if i < SPECIALS or i in used or kind == "byte" or (kind == "control" and piece not in tags)
    ]
    return np.array(kept)


def cut_vocabulary(vocabulary: Vocabulary, kept: np.ndarray) -> bytes:
    """Returns the content of a SentencePiece model that has only some of the ids, in their order."""
    model = model_proto(vocabulary.content)
    pieces = [model.pieces[int(i)] for i in kept]
    copies = [type(piece).FromString(piece.SerializeToString()) for piece in pieces]
    names = {piece.piece for piece in copies}
    del model.pieces[:]
    model.pieces.extend(copies)
    symbols = [symbol for symbol in model.trainer_spec.control_symbols if symbol in names]
    del model.trainer_spec.control_symbols[:]
    model.trainer_spec.control_symbols.extend(symbols)
    model.trainer_spec.vocab_size = len(copies)
    return model.SerializeToString(deterministic=True)
