"""Whether a config divides over its mesh: rows, experts, groups and every array.

XLA pads uneven dimensions inside a program. At the boundary of a program every dimension must divide
evenly over the mesh axes that split it. This is the one place that says which sizes do not.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from gshard_nmt.errors import UserError
from gshard_nmt.settings.config import Config, named_settings
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import UnevenDimension

_SETTINGS_OF_LETTERS = {
    "E": (("Model", "experts"),),
    "M": (("Model", "model_dim"),),
    "H": (("Model", "hidden_dim"), ("Model", "expert_hidden_dim")),
    "N": (("Model", "heads"),),
    "D": (("Model", "head_dim"),),
    "V": (("Data", "source_vocabulary"), ("Data", "target_vocabulary")),
}
"""The settings that a dimension of a weight may have its size from."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """One size that does not fit the mesh.

    Attributes:
      text: the error message, which names the setting or the array.
      uneven: the dimension that does not divide; None if the problem is of another kind.
    """

    text: str
    uneven: UnevenDimension | None = None


def check_divides(config: Config, arrays: Mapping[str, ArraySpec]) -> None:
    """Checks that a config divides over its mesh.

    Args:
      config: the run.
      arrays: the training state, and what else the program takes or returns, by name.

    Raises:
      UserError: a size does not divide. The message has the nearest sizes that do.
    """
    for problem in problems(config, arrays):
        raise UserError(problem.text)


def problems(
    config: Config, arrays: Mapping[str, ArraySpec], decoding: bool = False
) -> Iterator[Problem]:
    """Yields every size that does not divide over the mesh, each once.

    Args:
      config: the run.
      arrays: as for `check_divides`.
      decoding: also look at the batches of the decoder.
    """
    seen: set[UnevenDimension | str] = set()
    for problem in _all_problems(config, arrays, decoding):
        key = problem.uneven or problem.text
        if key not in seen:
            seen.add(key)
            yield problem


def _all_problems(
    config: Config, arrays: Mapping[str, ArraySpec], decoding: bool
) -> Iterator[Problem]:
    """Yields the problems of settings first, then those of arrays, which repeat many of them."""
    yield from _uneven(config, "Data.rows", "B", (config.data.rows,))
    if decoding and config.model.encoder_layers:  # language models do not translate
        yield from _uneven(config, "Decode.rows", "B", (config.decode.rows,))
    if config.model.experts:
        yield from _uneven(config, "Model.experts", "E", (config.model.experts,))
        if config.model.encoder_layers:
            yield from _uneven_groups(config, "source_length")
        yield from _uneven_groups(config, "target_length")
    for name, spec in arrays.items():
        yield from _uneven(config, name, spec.letters, spec.shape)


def _uneven(config: Config, name: str, letters: str, shape: tuple[int, ...]) -> Iterator[Problem]:
    """Yields the dimensions of one array, or of one setting, that do not divide."""
    try:
        for uneven in config.mesh.uneven(letters, shape, name):
            setting = "" if "." in name else _setting_of(config, uneven)
            text = uneven.describe(f"{setting} ({name})" if setting else name)
            yield Problem(text, uneven)
    except UserError as error:  # an override of the mesh does not fit the array
        yield Problem(str(error))


def _uneven_groups(config: Config, length: str) -> Iterator[Problem]:
    """Yields a problem if a batch has no whole number of groups, or if the groups do not divide."""
    data, model = config.data, config.model
    try:
        groups = model.moe(training=True).groups(data.rows, getattr(data, length))
    except UserError as error:
        yield Problem(f"Data.rows and Data.{length}: {error}")
        return
    is_set = model.num_groups and not model.group_size
    name = "Model.num_groups" if is_set else f"groups of Data.{length}"
    yield from _uneven(config, name, "G", (groups,))


def _setting_of(config: Config, uneven: UnevenDimension) -> str:
    """Returns the setting that a dimension of a weight has its size from, or "" if there is none."""
    values = named_settings([config.model, config.data])
    keys = _SETTINGS_OF_LETTERS.get(uneven.letter, ())
    return next((".".join(key) for key in keys if values[key] == uneven.size), "")
