"""Describes the arrays of a run before they exist: shape, dtype and letters.

These are the arrays of the training state, of a batch, and the control scalars of a training step.
The training state is one flat mapping: the model's weights under `parameters/`, the optimizer's
moments under `moments/`, the moving average of the weights under `ema/`, and small arrays such as `step`.
"""

import dataclasses
import fnmatch
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.model.steps import BATCH_ARRAYS, StepFunctions
from gshard_nmt.settings.config import Config
from gshard_nmt.spmd.lowering import ArraySpec, ArraySpecs
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.terminal import aligned

CONTROL = {
    "seed": ArraySpec((2,), np.dtype(np.uint32)),
    "max_steps": ArraySpec((), np.dtype(np.int32)),
    "max_tokens": ArraySpec((2,), np.dtype(np.uint32)),
    "one": ArraySpec((), np.dtype(np.float32)),
}
"""The scalars that a training step takes; see model/steps.py."""

_BY_NAME_IN_THE_MODEL = ("parameters", "ema")
"""The parts of a state that have an array for each weight. Each is a group of its own in a checkpoint."""


def step_functions(config: Config, data: Mapping[str, Any] | None = None) -> StepFunctions:
    """Returns the functions of a run: initialize, train, evaluate.

    `data` is the summary of its data, or `RunFolder.data`: the true sizes of the vocabularies, which may
    be smaller than those in the config, and the languages. None takes those of the config, and plans
    for 100 languages, as in the paper, if it names none.
    """
    sizes: Mapping[str, Any] = dataclasses.asdict(config.data)
    number = len(set(config.data.languages)) or 100  # GShard, section 4
    if data is not None:
        sizes, number = data, len({pair["language"] for pair in data["pairs"]})
    functions = StepFunctions(
        config.model,
        config.optimizer,
        sizes["source_vocabulary"],
        sizes["target_vocabulary"],
        number,
        config.train.gradient_jump,
        config.train.ema,
        config.train.microbatches,
    )
    frozen = _frozen(config.train.freeze, functions.declare_parameters())
    return dataclasses.replace(functions, frozen=frozen)


def _frozen(patterns: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Returns the names that match a pattern of `Train.freeze`; UserError if none or all do."""
    frozen: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if fnmatch.fnmatchcase(name, pattern)}
        if not matching:
            raise UserError(
                f"Train.freeze has {pattern!r}, and no weight has such a name"
                f"{did_you_mean(pattern, names)} Give the name of a weight, or a pattern such as "
                "'encoder/*'; parameters.txt in a run folder lists all names after 'parameters/'.",
                ["Train.freeze"],
            )
        frozen |= matching
    if patterns and len(frozen) == len(names):
        raise UserError(
            f"Train.freeze is {list(patterns)}, which matches all weights, so there is nothing to train. "
            "Leave a pattern out.",
            ["Train.freeze"],
        )
    return tuple(sorted(frozen))


def state_specs(functions: StepFunctions) -> dict[str, ArraySpec]:
    """Returns shape, dtype and letters of every array of the training state."""
    return {
        name: ArraySpec(array.shape, np.dtype(array.dtype), array.letters)
        for name, array in functions.declare_state().items()
    }


def weight_specs(functions: StepFunctions) -> dict[str, ArraySpec]:
    """Returns shape, dtype and letters of every weight, by its name in the model."""
    return weights_of(state_specs(functions))


def letters_of(specs: ArraySpecs) -> dict[str, str]:
    return {name: spec.letters for name, spec in specs.items()}


def batch_specs(config: Config) -> dict[str, ArraySpec]:
    """Returns shape, dtype and letters of every array of a batch: int32[B, L] each."""
    lengths = {"source": config.data.source_length, "target": config.data.target_length}
    shapes = {n: (config.data.rows, lengths[n.partition("_")[0]]) for n in BATCH_ARRAYS}
    return {name: ArraySpec(shape, np.dtype(np.int32), "BL") for name, shape in shapes.items()}


def training_arrays(config: Config, functions: StepFunctions) -> dict[str, ArraySpec]:
    """Returns the specs of a batch and of the training state: all arrays that must fit the mesh."""
    return {**batch_specs(config), **state_specs(functions)}


def weights_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the weights among the arrays (or specs) of a state, by their names in the model."""
    return as_groups(state)["parameters"]


def weights_to_decode(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the weights that are validated and decoded: the moving average if there is one."""
    groups = as_groups(state)
    return groups.get("ema", groups["parameters"])


def as_groups(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the arrays (or specs) of a state as the groups of a checkpoint.

    These are `parameters` and, if there is one, `ema` (by their names in the model), and `optimizer` (all
    other arrays by their names in the state).
    """
    groups: dict[str, dict[str, Any]] = {"parameters": {}, "optimizer": {}}
    for name, array in state.items():
        group, _, rest = name.partition("/")
        if group in _BY_NAME_IN_THE_MODEL:
            groups.setdefault(group, {})[rest] = array
        else:
            groups["optimizer"][name] = array
    return groups


def from_groups(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the state that `as_groups` has taken apart. Other groups are left out."""
    state = dict(groups["optimizer"])
    for group in _BY_NAME_IN_THE_MODEL:
        state |= {f"{group}/{name}": array for name, array in groups.get(group, {}).items()}
    return state


def parameter_table(specs: ArraySpecs, mesh: Mesh) -> str:
    """Returns name, shape, dtype, sharding and bytes of every array, with totals, as aligned text."""
    rows = [("name", "shape", "dtype", "sharding", "bytes", "bytes/device")]
    total = per_device = 0
    for name, spec in sorted(specs.items()):
        partition = mesh.partition(spec.letters, name)
        shard_bytes = spec.nbytes // int(np.prod([mesh.axis_size(axes) for axes in partition]))
        total, per_device = total + spec.nbytes, per_device + shard_bytes
        split = ",".join("*".join(axes) or "-" for axes in partition)
        sharding = f"{spec.letters or '-'} [{split}]"
        sizes = str(spec.nbytes), str(shard_bytes)
        rows.append((name, shape_text(spec.shape), str(spec.dtype), sharding, *sizes))
    rows.append(("total", "", "", "", str(total), str(per_device)))
    return aligned(rows)


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
