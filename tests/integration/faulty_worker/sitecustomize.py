"""Faults of a worker process. Python runs this file when it starts, if its folder is in PYTHONPATH.

The environment variable GSHARD_TEST_FAULT says what goes wrong, and GSHARD_NMT_WATCHED is in the
environment of workers only:

- `slow`: reading each batch takes 0.2 seconds longer.
- `memory`: the host has no memory for the fourth batch.
- `device`: the device has no memory for the fourth batch.
- `disk`: the disk is full from the fourth batch on.
"""

import os
import resource
import time

FAULT = os.environ.get("GSHARD_TEST_FAULT", "")


def _fail(batch: int) -> None:
    """Does what the fault does before a batch is read."""
    if FAULT == "slow":
        time.sleep(0.2)
    elif batch == 4 and FAULT == "memory":
        raise MemoryError
    elif batch == 4 and FAULT == "device":
        import jax

        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."
        )
    elif batch == 4 and FAULT == "disk":
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))


if FAULT and "GSHARD_NMT_WATCHED" in os.environ:
    from gshard_nmt.data.batches import TrainBatches

    read = TrainBatches.__next__
    batches = 0

    def read_with_fault(self):
        global batches
        batches += 1
        _fail(batches)
        return read(self)

    TrainBatches.__next__ = read_with_fault
