"""Weights between those at the start of a run and those that it has learned."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gshard_nmt.run.blend import StartWeights

SPLIT = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("x",)), PartitionSpec("x"))


def placed(values, dtype=np.float32):
    return jax.device_put(np.array(values, dtype), SPLIT)


def test_a_share_of_the_change_is_taken():
    start = StartWeights({"w": placed([1.0, 2.0])}, {})
    learned = {"w": placed([2.0, -2.0])}
    blended = start.blended(learned, 0.25)
    np.testing.assert_array_equal(blended["w"], [1.25, 1.0])
    assert blended["w"].sharding == SPLIT
    np.testing.assert_array_equal(learned["w"], [2, -2])
    for share, expected in ((0.0, [1, 2]), (1.0, [2, -2])):
        np.testing.assert_array_equal(start.blended(learned, share)["w"], expected)


def test_what_the_start_did_not_have_is_as_it_was_learned():
    """New rows of an embedding, and arrays of new layers."""
    start = StartWeights({"rows": placed([[0.0], [8.0]])}, {"rows": np.array([False, True])})
    learned = {"rows": placed([[4.0], [4.0]]), "new": placed([3.0, 4.0])}
    blended = start.blended(learned, 0.5)
    np.testing.assert_array_equal(blended["rows"], [[2], [4]])
    assert blended["new"] is learned["new"]


@pytest.mark.parametrize("dtype", [np.float32, jax.numpy.bfloat16])
def test_the_sum_is_float32_and_the_dtype_stays(dtype):
    """In bfloat16, 255 + 0.6 * (1 - 255) would round its parts to 102."""
    blended = StartWeights({"w": placed([255, 0], dtype)}, {}).blended(
        {"w": placed([1, 0], dtype)}, 0.6
    )
    assert blended["w"].dtype == dtype
    wanted = np.array([255 + np.float32(0.6) * -254, 0], np.float32).astype(dtype)
    np.testing.assert_array_equal(np.asarray(blended["w"]), wanted)
