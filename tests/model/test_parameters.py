"""Declared parameters: their names, their stacking, and their initial values."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import counter_random
from gshard_nmt.model.parameters import (
    ONES,
    ZEROS,
    Parameter,
    fan_in_uniform,
    initial_values,
    normal,
    stacked,
)

KEY = counter_random.Key.from_seed(tf.constant([1, 2], tf.uint32))
DECLARED = {
    "layer/matrix": Parameter((300, 200), "MH", fan_in_uniform(300)),
    "table": Parameter((400, 100), "VM", normal(0.5)),
    "scale": Parameter((7,), "M", ONES, keep_float32=True),
    "step": Parameter((), "", ZEROS, "int32"),
}


def test_initial_values_have_the_declared_shape_dtype_and_distribution():
    values = {name: value.numpy() for name, value in initial_values(DECLARED, KEY).items()}
    for name, parameter in DECLARED.items():
        assert values[name].shape == parameter.shape
        assert values[name].dtype == parameter.dtype
    matrix, table = values["layer/matrix"], values["table"]
    assert np.abs(matrix).max() == pytest.approx(np.sqrt(3 / 300), rel=1e-3)
    assert matrix.var() == pytest.approx(1 / 300, rel=0.03)
    assert table.std() == pytest.approx(0.5, rel=0.03)
    assert abs(matrix.mean()) < 1e-3
    assert abs(table.mean()) < 0.01
    assert (values["scale"] == 1).all()
    assert values["step"] == 0


def test_parameters_of_one_shape_are_drawn_together_as_each_alone():
    matrix, table = DECLARED["layer/matrix"], DECLARED["table"]
    declared = {
        "a": matrix,
        "table": table,
        "b": dataclasses.replace(matrix, initializer=fan_in_uniform(10)),
        "other_table": dataclasses.replace(table, initializer=normal(2.0)),
        "normal": dataclasses.replace(matrix, initializer=normal(1.0)),
    }
    values = initial_values(declared, KEY)
    assert list(values) == list(declared)
    for name, parameter in declared.items():
        kind, scale = parameter.initializer.kind, parameter.initializer.scale
        key = KEY.fold(name)
        if kind == "normal":
            expected = counter_random.normal(key, parameter.shape) * scale
        else:
            expected = (2.0 * counter_random.uniform(key, parameter.shape) - 1.0) * scale
        np.testing.assert_array_equal(values[name], expected, err_msg=name)


def test_stacked_blocks_are_drawn_like_single_ones_and_differ():
    matrix = dataclasses.replace(DECLARED["layer/matrix"], keep_float32=True)
    declared = stacked("R", 3, {"w": matrix})
    assert (declared["w"].shape, declared["w"].letters) == ((3, 300, 200), "RMH")
    assert declared["w"].size == 3 * matrix.size
    assert declared["w"].keep_float32
    blocks = initial_values(declared, KEY)["w"].numpy().reshape(3, -1)
    np.testing.assert_allclose(blocks.var(axis=1), 1 / 300, rtol=0.03)
    correlation = np.corrcoef(blocks) - np.eye(3)
    assert np.abs(correlation).max() < 5 / np.sqrt(matrix.size)
