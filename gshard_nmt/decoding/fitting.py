"""What decoding runs on: the shapes of its batches, and a mesh that fits this machine.

A run may have been trained on another machine, with a mesh that this machine does not have.
"""

import dataclasses
import math
import sys
from collections.abc import Sequence

from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import weight_specs
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import decoding_problems
from gshard_nmt.spmd.machine import device_counts
from gshard_nmt.spmd.mesh import nearest_mesh, of_shape
from gshard_nmt.spmd.processes import Processes


def fitted(config: Config, functions: StepFunctions, processes: Processes) -> Config:
    """Returns the config with the mesh of the run, if it fits this machine.

    Otherwise it has a mesh with the same axes and rules, over which the weights divide. Process 0 chooses
    it for all processes, because their machines may differ, and says so on stderr. If there is none, the
    config stays as it is.
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
    """Returns the config with the first mesh that fits, and says on stderr if it is not the run's."""
    weights = weight_specs(functions)
    reason = f"the mesh of the run has {config.mesh.num_devices} devices, and {machine}."
    for count in counts:
        candidate = config.replace(mesh=nearest_mesh(config.mesh, count))
        problem = next(decoding_problems(candidate, weights), None)
        if problem is None:
            if (mesh := candidate.mesh) != config.mesh:
                sys.stderr.write(
                    f"{reason} Decoding on the mesh {mesh.words}; --gin 'Mesh.shape = ...' "
                    "chooses another.\n"
                )
            return candidate
        if candidate.mesh == config.mesh:
            reason = problem.text
    return config


@dataclasses.dataclass(frozen=True)
class BatchShape:
    """A shape of batches: L tokens of a source and I of a translation at most, EOS included."""

    source_length: int
    max_steps: int


def batch_shape(config: Config, source_length: int) -> BatchShape:
    """Returns the shape of the batches whose rows have `source_length` tokens, end included."""
    decode = config.decode
    steps = int(decode.length_ratio * source_length) + decode.length_margin
    return BatchShape(source_length, min(config.data.target_length, steps))


FEWEST_PRODUCT_ROWS = 64
"""The rows of a product, on each CPU device, are a multiple of this number.

XLA's kernels for CPUs add in another order if there are fewer rows, or if the last few rows of many are
left over. A translation would then depend on the number of rows."""


def least_rows(config: Config, is_cpu: bool, nbest: int = 1) -> int:
    """Returns the rows of which a device has a multiple; sampling has `nbest` of each sentence."""
    if not is_cpu:
        return 1
    hypotheses = nbest if config.decode.method == "sample" else config.decode.beam
    return FEWEST_PRODUCT_ROWS // math.gcd(FEWEST_PRODUCT_ROWS, hypotheses)


def batch_rows(config: Config, is_cpu: bool, nbest: int = 1) -> int:
    """Returns `Decode.rows`, rounded up to divide over the mesh into multiples of `least_rows`."""
    mesh = config.mesh
    unit = least_rows(config, is_cpu, nbest) * mesh.axis_size(mesh.partition("B")[0])
    return -(-config.decode.rows // unit) * unit
