"""Faults of a process. Python runs this file when it starts, if its folder is in PYTHONPATH.

The environment variable GSHARD_TEST_FAULT says what goes wrong:

- `slow`: reading each batch takes 0.4 seconds longer.
- `memory`: the host has no memory for the fourth batch.
- `disk`: the disk is full from the fourth batch on.
- `gradient`: from step 7 on the gradient is not a number; all processes must have this fault.
- `late`: each run folder is claimed one second later.
- `pause`: each step after the fifth takes a second longer.
"""

import itertools
import os
import resource
import time

FAULT = os.environ.get("GSHARD_TEST_FAULT", "")


def _fail(batch: int) -> None:
    """Does what the fault does before a batch is read."""
    if FAULT == "slow":
        time.sleep(0.4)
    elif batch == 4 and FAULT == "memory":
        raise MemoryError
    elif batch == 4 and FAULT == "disk":
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))


if FAULT:
    import numpy as np

    from gshard_nmt import train
    from gshard_nmt.data.batching.batches import TrainBatches
    from gshard_nmt.run.arrays import CONTROL
    from gshard_nmt.run.folder import RunFolder

    read, claim, step = TrainBatches.__next__, RunFolder.claim, train._Trainer._train_step
    batches = itertools.count(1)

    def read_with_fault(self):
        """Reads a batch as TrainBatches does, after a fault."""
        _fail(next(batches))
        return read(self)

    def claim_late(self, *arguments, **options):
        """Claims a run folder as RunFolder does, but late."""
        time.sleep(1)
        claim(self, *arguments, **options)

    def step_without_gradient(self, batch, control):
        """Does a training step, whose gradient starts from NaN instead of 1."""
        if self.state.counters.step >= 6:
            nan = {"one": np.array(np.nan, np.float32)}
            control = control | self.programs.devices.put(nan, {"one": CONTROL["one"]})
        return step(self, batch, control)

    def step_with_pause(self, batch, control):
        """Does a training step, late."""
        if self.state.counters.step >= 5:
            time.sleep(1)
        return step(self, batch, control)

    TrainBatches.__next__ = read_with_fault
    if FAULT == "late":
        RunFolder.claim = claim_late
    elif FAULT == "gradient":
        train._Trainer._train_step = step_without_gradient
    elif FAULT == "pause":
        train._Trainer._train_step = step_with_pause
