"""Chooses a mesh on which this machine can decode a run that was trained on another machine."""

import sys

from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import weight_specs
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_decoding, decoding_problems
from gshard_nmt.spmd.machine import device_counts
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.processes import Processes
from gshard_nmt.spmd.resize import nearest_mesh


def fitted(config: Config, functions: StepFunctions, processes: Processes) -> Config:
    """Returns the config with a mesh for this machine: the mesh of the run, if it fits.

    Otherwise it is a mesh with the same axes and rules, over which the weights and the batches of the
    decoder divide. Process 0 says so on stderr, in one line. If there is no such mesh, the config stays
    as it is.

    Args:
      config: the run.
      functions: the functions of the run, which know the shapes of the weights.
      processes: the processes that decode together.
    """
    counts, machine = device_counts(config.mesh.num_devices, processes)
    weights = weight_specs(functions)
    reason = f"the mesh of the run has {config.mesh.num_devices} devices, and {machine}."
    for count in counts:
        candidate = config.replace(mesh=nearest_mesh(config.mesh, count))
        problem = next(decoding_problems(candidate, weights), None)
        if problem is None:
            if candidate.mesh != config.mesh and processes.is_first:
                sys.stderr.write(
                    f"{reason} Decoding on the mesh {_words(candidate.mesh)}; --gin 'Mesh.shape = ...' "
                    "chooses another.\n"
                )
            return candidate
        if candidate.mesh == config.mesh:
            reason = problem.text
    return config


def check(config: Config, functions: StepFunctions) -> None:
    """Checks that the weights and the batches of the decoder divide over the mesh.

    Raises:
      UserError: they do not. The message has the nearest sizes that do.
    """
    check_decoding(config, weight_specs(functions))


def _words(mesh: Mesh) -> str:
    return " x ".join(f"{a}={n}" for a, n in zip(mesh.axes, mesh.shape, strict=True))
