"""Threefry against the known answers of its authors, and the needs of dropout and initialization."""

import re

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import NamedSharding, PartitionSpec

from gshard_nmt.model import counter_random
from gshard_nmt.spmd.lowering import ArraySpec, as_jax_function, lower


def key_of(word0: int, word1: int) -> counter_random.Key:
    return counter_random.Key(tf.constant(word0, tf.uint32), tf.constant(word1, tf.uint32))


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [
        ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0xFD36D048, 0x2D17272C)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xBA3E4725, 0xF27D669E)),
    ],
)
def test_threefry_gives_the_known_answers_of_random123_for_13_rounds(key, counter, answer):
    counters = [tf.constant(word, tf.uint32) for word in counter]
    assert tuple(int(word) for word in counter_random.threefry(key_of(*key), *counters)) == answer


def test_four_devices_draw_the_numbers_of_one_each_only_its_own():
    """A device has 2 of 8 rows, and no collective brings it those of the others."""

    def draw(inputs):
        key = counter_random.Key.from_seed(inputs["seed"])
        return [{"numbers": counter_random.uniform(key, (8, 16))}]

    seed = np.array([3, 4], np.uint32)
    program = lower(draw, [{"seed": ArraySpec(seed.shape, seed.dtype)}], [{}], None)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    by_row = NamedSharding(mesh, PartitionSpec("x"))
    compiled = jax.jit(as_jax_function(program), out_shardings=by_row).lower(seed).compile()
    (numbers,) = compiled(seed)
    assert {shard.data.shape for shard in numbers.addressable_shards} == {(2, 16)}
    np.testing.assert_array_equal(numbers, counter_random.uniform(key_of(3, 4), (8, 16)))
    text = compiled.as_text()
    assert not re.findall(r" (all-\w+|collective-permute|reduce-scatter)\(", text)
    assert "[8,16]" not in text, "a device computes the whole array"


def test_steps_names_and_repeats_are_uncorrelated():
    base = key_of(5, 1)
    keys = [base, key_of(5, 2), base.fold("a"), base.fold("b"), base.fold("a", 1)]
    draws = np.stack([counter_random.uniform(key, (100, 200)).numpy().ravel() for key in keys])
    correlation = np.corrcoef(draws) - np.eye(len(keys))
    assert np.abs(correlation).max() < 5 / np.sqrt(draws.shape[1])
    # If a draw used seed + index, the draws of two steps would be equal up to a shift by one element.
    assert abs(np.corrcoef(draws[0, 1:], draws[1, :-1])[0, 1]) < 5 / np.sqrt(draws.shape[1])


def test_moments_of_uniform_and_normal():
    uniform = counter_random.uniform(key_of(1, 1), (400, 500)).numpy()
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.003
    assert abs(uniform.var() - 1 / 12) < 0.001
    normal = counter_random.normal(key_of(1, 1), (400, 500)).numpy()
    assert np.isfinite(normal).all()
    assert abs(normal.mean()) < 0.01
    assert abs(normal.std() - 1) < 0.01
