"""Faults of a process. Python runs this file when it starts, if its folder is in PYTHONPATH.

The environment variable GSHARD_TEST_FAULT says what goes wrong:

- `memory`: the host has no memory for the fourth batch.
- `disk`: the disk is full from the fourth batch on.
- `gradient`: from step 7 on the gradient is not a number; all processes must have this fault.
- `pause`: each step after the fifth takes a second longer.
"""

import itertools
import os
import resource
import time

FAULT = os.environ.get("GSHARD_TEST_FAULT", "")


def _fail(batch: int) -> None:
    """Does what the fault does before a batch is read."""
    if batch == 4 and FAULT == "memory":
        raise MemoryError
    if batch == 4 and FAULT == "disk":
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))


if FAULT:
    import numpy as np

    from gshard_nmt import train
    from gshard_nmt.data.batching.batches import TrainBatches
    from gshard_nmt.run.arrays import CONTROL

    read, step = TrainBatches.__next__, train._Trainer._train_step
    batches = itertools.count(1)

    def read_with_fault(self):
        """Reads a batch as TrainBatches does, after a fault."""
        _fail(next(batches))
        return read(self)

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
    if FAULT == "gradient":
        train._Trainer._train_step = step_without_gradient
    elif FAULT == "pause":
        train._Trainer._train_step = step_with_pause
