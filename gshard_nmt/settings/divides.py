"""Checks that a config divides over its mesh and into microbatches: rows, experts, groups, every array.

XLA pads uneven dimensions inside a program. But every dimension of an input or output must divide
evenly over the mesh axes that split it. This module finds the sizes that break this rule.
"""

import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path

from gshard_nmt.errors import UserError
from gshard_nmt.model.regularizers import homes
from gshard_nmt.settings.config import Config, named_settings
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import UnevenDimension

_SETTINGS_OF_LETTERS = {
    "E": (("Model", "experts"),),
    "M": (("Model", "model_dim"),),
    "H": (("Model", "hidden_dim"), ("Model", "expert_hidden_dim"), ("Model", "shared_expert_dim")),
    "N": (("Model", "heads"),),
    "D": (("Model", "head_dim"),),
    "V": (("Data", "source_vocabulary"), ("Data", "target_vocabulary")),
}
"""For each letter of a weight, the settings that may have determined the size of the dimension."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One size that does not fit the mesh, as an error message.

    Two problems have equal causes if one change of the config would solve both.
    """

    text: str
    cause: Hashable


def check_divides(config: Config, arrays: Mapping[str, ArraySpec]) -> None:
    """Raises UserError if a size of a config or an array does not divide over the mesh."""
    _raise_first(problems(config, arrays))


def check_decoding(config: Config, weights: Mapping[str, ArraySpec]) -> None:
    """Raises UserError if a model cannot be decoded on the mesh of its config."""
    _raise_first(decoding_problems(config, weights))


def check_can_decode(config: Config) -> None:
    """Raises UserError if the model cannot be decoded on any mesh: decoding may use another one."""
    _raise_first(_unfit_lengths(config))


def check_validation(config: Config) -> None:
    """Raises UserError if a run that validates with BLEU cannot decode, so that it does not stop then."""
    validates = config.train.dev_every and config.train.bleu_sentences
    if validates and not config.model.encoder_layers:
        raise UserError(
            f"Train.bleu_sentences is {config.train.bleu_sentences}, but Model.encoder_layers is 0, and "
            "a language model has no source to translate. Set Train.bleu_sentences to 0.",
            ["Train.bleu_sentences", "Model.encoder_layers"],
        )


def _raise_first(found: Iterable[Problem]) -> None:
    for problem in found:
        raise UserError(problem.text)


def decoding_problems(config: Config, weights: Mapping[str, ArraySpec]) -> Iterator[Problem]:
    """Yields every size that decoding needs and that does not fit the mesh or the model.

    Rows are no problem: the translator rounds `Decode.rows` up, see `Translator.rows`.
    """
    yield from _unfit_lengths(config)
    for name, spec in weights.items():
        yield from _uneven(config, name, spec.letters, spec.shape)


def problems(
    config: Config, arrays: Mapping[str, ArraySpec], decoding: bool = False
) -> Iterator[Problem]:
    """Yields every size that does not divide over the mesh, once even if many arrays have this size.

    `decoding` checks the source lengths of the decoder too.
    """
    causes: set[Hashable] = set()
    of_arrays = (_uneven(config, name, a.letters, a.shape) for name, a in arrays.items())
    for problem in itertools.chain(_setting_problems(config, decoding), *of_arrays):
        if problem.cause not in causes:
            causes.add(problem.cause)
            yield problem


def _setting_problems(config: Config, decoding: bool) -> Iterator[Problem]:
    """Yields the problems that are known from the settings alone."""
    yield from _uneven(config, "Data.rows", "B", (config.data.rows,))
    if config.model.stack == "pipeline":
        yield from _uneven(config, "Model.stages", "P", (config.model.stages,))
    yield from _uneven_microbatches(config, "Data.rows", "B", config.data.rows)
    model, data = config.model, config.data
    for side, length in (("source", data.source_length), ("target", data.target_length)):
        is_read = side == "target" or model.encoder_layers
        if is_read and model.positions == "learned" and length > model.max_positions:
            text = (
                f"Data.{side}_length: {length} tokens are more than Model.max_positions, which is "
                f"{model.max_positions}. Set that to {length} or more."
            )
            yield Problem(text, text)
    if decoding:
        yield from _unfit_lengths(config)
    if config.model.experts:
        yield from _uneven(config, "Model.experts", "E", (config.model.experts,))
    for stack, setting in (("encoder", "source_length"), ("decoder", "target_length")):
        if model.has_experts(stack):
            yield from _uneven_groups(config, setting)


def _unfit_lengths(config: Config) -> Iterator[Problem]:
    """Yields a problem if the decoder's source lengths are more than the model has positions for."""
    model, longest = config.model, max(config.decode.source_lengths)
    # Language models do not translate.
    if model.encoder_layers and model.positions == "learned" and longest > model.max_positions:
        text = (
            f"Decode.source_lengths: {longest} tokens are more than Model.max_positions, which is "
            f"{model.max_positions}. Leave out the lengths above {model.max_positions}."
        )
        yield Problem(text, text)


def _uneven(config: Config, name: str, letters: str, shape: tuple[int, ...]) -> Iterator[Problem]:
    """Yields the dimensions of one array, or of one setting, that do not divide."""
    try:
        for uneven in config.mesh.uneven(letters, shape, name):
            setting = "" if "." in name else _setting_of(config, uneven)
            text = uneven.describe(f"{setting} ({name})" if setting else name)
            yield Problem(text, uneven)
    except UserError as error:
        # An entry of Mesh.overrides has more or fewer dimensions than the array.
        yield Problem(str(error), str(error).replace(name, ""))


def _uneven_groups(config: Config, length: str) -> Iterator[Problem]:
    """Yields a problem if a batch does not divide into groups, or the groups do not fit the mesh."""
    data, model = config.data, config.model
    try:
        groups = model.moe(training=True).groups(data.rows, getattr(data, length))
    except UserError as error:
        text = f"Data.rows and Data.{length}: {error}"
        yield Problem(text, text)
        return
    is_set = model.num_groups and not model.group_size
    name = "Model.num_groups" if is_set else f"groups of Data.{length}"
    group_size = data.rows * getattr(data, length) // groups
    yield from _uneven(config, name, "GS", (groups, group_size))
    yield from _uneven_microbatches(config, name, "G", groups)
    if model.gating_dropout:
        try:
            homes(max(1, groups // config.train.microbatches), model.experts)
        except UserError as error:
            yield Problem(str(error), str(error))


def _uneven_microbatches(config: Config, name: str, letter: str, size: int) -> Iterator[Problem]:
    """Yields a problem if rows or groups do not divide into equal microbatches on every device."""
    number, axes = config.train.microbatches, config.mesh.partition(letter)[0]
    if config.model.stack == "pipeline":
        # Inside a pipeline, the axis of the stages splits nothing else.
        axes = tuple(axis for axis in axes if axis not in config.mesh.partition("P")[0])
    shards = config.mesh.axis_size(axes)
    multiple = number * shards
    if number == 1 or size % shards or size % multiple == 0:
        return  # sizes that do not divide over the devices are another problem
    below = size // multiple * multiple
    nearest = f"{below} or {below + multiple}" if below else str(multiple)
    over = f" on each of {shards} shards" if shards > 1 else ""
    text = (
        f"{name}: {size} does not divide into Train.microbatches = {number} equal parts{over}. Use a "
        f"multiple of {multiple}, such as {nearest}, or another number of microbatches."
    )
    yield Problem(text, ("microbatches", name))


def _setting_of(config: Config, uneven: UnevenDimension) -> str:
    """Returns the setting that determined the size of a weight's dimension, or "" if none did."""
    values = named_settings([config.model, config.data])
    keys = _SETTINGS_OF_LETTERS.get(uneven.letter, ())
    return next((".".join(key) for key in keys if values[key] == uneven.size), "")


def check_shared_embedding(config: Config, data: Path) -> None:
    """Raises UserError if most rows of one embedding would mean two pieces."""
    from gshard_nmt.data.sets.manifest import VOCABULARIES
    from gshard_nmt.data.text.vocabulary import Vocabulary  # not every program needs SentencePiece

    if not (config.model.shared_embedding and config.model.encoder_layers):
        return
    sides = (Vocabulary.load(data / name).keys() for name in VOCABULARIES)
    # A model of Marian has pieces of each side and tags of the source alone, so a few may differ.
    texts = [a == b for a, b in zip(*sides, strict=True) if a[0] == b[0] == "text"]
    if sum(texts) < len(texts) / 2:
        raise UserError(
            f"Model.shared_embedding is True, and the vocabularies of --data {data} have "
            "other pieces at the same ids. Prepare it with --vocabulary_of the model you start from, or "
            "with Data.vocabulary = 'joint'.",
            ["Model.shared_embedding", "Data.vocabulary"],
        )
