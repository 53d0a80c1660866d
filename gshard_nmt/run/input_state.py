"""The position in the training data, as arrays on the devices that are split by the rows of a batch.

A checkpoint holds these arrays, so each process writes and reads only the rows that its devices hold.
jax has no 64-bit integers by default, so each number is stored as two words of 32 bits, low word
first.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gshard_nmt.data.batching.batches import new_position
from gshard_nmt.data.config import Data
from gshard_nmt.spmd.lowering import ArraySpec, ArraySpecs
from gshard_nmt.spmd.runtime import Runtime

_LITTLE_ENDIAN = np.dtype("<i8")


def input_specs(config: Data) -> dict[str, ArraySpec]:
    """Returns shape, dtype and letters of the arrays.

    There is one array, `position` int32[B, 2 + phases, 2]: `new_position` in words of 32 bits.
    """
    return {"position": ArraySpec((*new_position(config).shape, 2), np.dtype(np.int32), "B__")}


def to_devices(state: Mapping[str, np.ndarray], specs: ArraySpecs, devices: Runtime) -> dict:
    """Places the state of the input on the devices.

    Args:
      state: the result of `TrainBatches.state()`: int64[B, ...] arrays in which the rows of this process
        are correct.
      specs: the result of `input_specs`.
      devices: the devices of the run.
    """
    words = {
        name: np.ascontiguousarray(array, _LITTLE_ENDIAN).view(np.int32).reshape(specs[name].shape)
        for name, array in state.items()
    }
    return devices.put(words, specs)


def from_devices(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the state of the input: int64[B, ...] arrays with the rows of this process.

    The rows that other processes hold are 0.
    """
    state = {}
    for name, array in arrays.items():
        words = np.zeros(array.shape, np.int32)
        for shard in array.addressable_shards:
            words[shard.index] = shard.data
        state[name] = words.view(_LITTLE_ENDIAN).reshape(array.shape[:-1]).astype(np.int64)
    return state
