"""Chooses a mesh on which this machine can decode a run that was trained on another machine."""

import dataclasses
import sys
from collections.abc import Sequence

from gshard_nmt.model.config import Model
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import weight_specs
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_decoding, decoding_problems
from gshard_nmt.spmd.machine import device_counts
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.processes import Processes
from gshard_nmt.spmd.resize import nearest_mesh, of_shape


def fitted(config: Config, functions: StepFunctions, processes: Processes) -> Config:
    """Returns the config with a mesh for this machine: the mesh of the run, if it fits.

    Otherwise it is a mesh with the same axes and rules, over which the weights divide. Process 0 chooses
    it for all processes, because their machines may differ, and says so on stderr in one line. If there
    is no such mesh, the config stays as it is.

    Args:
      config: the run.
      functions: the functions of the run, which know the shapes of the weights.
      processes: the processes that decode together.
    """
    # On accelerators this starts jax, which all processes must do together.
    counts, machine = device_counts(config.mesh.num_devices, processes)
    shape = processes.from_first(
        lambda: list(_first_that_fits(config, functions, counts, machine).mesh.shape)
    )
    return config.replace(mesh=of_shape(config.mesh, shape))


def _first_that_fits(
    config: Config, functions: StepFunctions, counts: Sequence[int], machine: str
) -> Config:
    """Returns the config with the first mesh that fits, and says on stderr if it is not the run's.

    Args:
      config, functions: as in `fitted`.
      counts: the numbers of devices to try, in order.
      machine: the devices of this machine, in words.
    """
    weights = weight_specs(functions)
    reason = f"the mesh of the run has {config.mesh.num_devices} devices, and {machine}."
    for count in counts:
        candidate = config.replace(mesh=nearest_mesh(config.mesh, count))
        problem = next(decoding_problems(candidate, weights), None)
        if problem is None:
            if candidate.mesh != config.mesh:
                sys.stderr.write(
                    f"{reason} Decoding on the mesh {_words(candidate.mesh)}; --gin 'Mesh.shape = ...' "
                    "chooses another.\n"
                )
            return candidate
        if candidate.mesh == config.mesh:
            reason = problem.text
    return config


def check(config: Config, functions: StepFunctions) -> None:
    """Checks that the weights divide over the mesh, and that the model has positions for all batches.

    Raises:
      UserError: they do not. The message has the nearest sizes that do.
    """
    check_decoding(config, weight_specs(functions))


def lowering_mesh(model: Model, mesh: Mesh) -> Mesh:
    """Returns the mesh that decoding is lowered for.

    In decoding, experts run in manual regions (`expert_shards`), and Shardy does not take them yet.
    """
    return dataclasses.replace(mesh, partitioner="gspmd") if model.experts else mesh


def _words(mesh: Mesh) -> str:
    return " x ".join(f"{a}={n}" for a, n in zip(mesh.axes, mesh.shape, strict=True))
