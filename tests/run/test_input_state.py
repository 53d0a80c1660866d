"""The position in the training data as arrays on the devices."""

import types

import jax
import numpy as np

from gshard_nmt.run import input_state
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.mesh import Mesh

DATA = load_config("demo").replace(data={"rows": 8, "packing_window": 3}).data
SPECS = input_state.input_specs(DATA)


def state() -> dict[str, np.ndarray]:
    """Numbers of more than 32 bits, and the -1 of places where no example waits."""
    waiting = np.arange(24, dtype=np.int64).reshape(8, 3) * 2**33 + 7
    waiting[:, 2] = -1
    return {"cursors": np.arange(8, dtype=np.int64) + 2**40, "waiting": waiting}


def test_it_comes_back_as_it_was_on_any_mesh():
    for shape in (1, 2, 8):
        devices = runtime.start(Mesh(shape=(shape,)))
        arrays = input_state.to_devices(state(), SPECS, devices)
        assert {array.dtype for array in arrays.values()} == {np.dtype(np.int32)}
        assert arrays["waiting"].addressable_shards[0].data.shape == (8 // shape, 3, 2)
        restored = input_state.from_devices(arrays)
        for name, array in state().items():
            np.testing.assert_array_equal(restored[name], array)
            assert restored[name].dtype == np.int64


def test_a_process_reads_only_the_rows_of_its_own_devices():
    arrays = input_state.to_devices(state(), SPECS, runtime.start(Mesh(shape=(4,))))
    local = {
        name: types.SimpleNamespace(
            shape=array.shape, addressable_shards=array.addressable_shards[2:]
        )
        for name, array in arrays.items()
    }
    restored = input_state.from_devices(local)
    np.testing.assert_array_equal(restored["cursors"][4:], state()["cursors"][4:])
    np.testing.assert_array_equal(restored["waiting"][4:], state()["waiting"][4:])
    assert not restored["cursors"][:4].any()


def test_the_words_are_low_word_first():
    arrays = input_state.to_devices(state(), SPECS, runtime.start(Mesh()))
    assert np.asarray(arrays["cursors"])[3].tolist() == [3, 2**8]
    assert jax.tree.map(lambda array: array.shape, arrays) == {
        "cursors": (8, 2),
        "waiting": (8, 3, 2),
    }
