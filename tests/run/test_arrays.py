"""The specs of a run's arrays, the two parts of a state, and the table of parameters."""

import numpy as np

from gshard_nmt.model.steps import BATCH_ARRAYS
from gshard_nmt.run.arrays import (
    batch_specs,
    parameter_table,
    state_specs,
    step_functions,
    training_arrays,
    weight_specs,
    weights_of,
    with_weights,
    without_weights,
)
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh

DEMO = load_config("demo")


def test_a_state_is_its_weights_and_the_rest():
    state = state_specs(step_functions(DEMO))
    weights, others = weights_of(state), without_weights(state)
    assert with_weights(others, weights) == state
    assert len(weights) + len(others) == len(state)
    assert weights_of(with_weights({}, weights)) == weights
    assert "step" in others
    assert weights.keys() == step_functions(DEMO).declare_parameters().keys()
    assert weight_specs(step_functions(DEMO)) == weights


def test_a_batch_has_the_rows_and_lengths_of_the_config():
    config = DEMO.replace(data={"rows": 6, "source_length": 10, "target_length": 12})
    specs = batch_specs(config)
    assert set(specs) == set(BATCH_ARRAYS)
    for name, spec in specs.items():
        length = 10 if name.startswith("source") else 12
        assert spec == ArraySpec((6, length), np.dtype(np.int32), "BL")


def test_training_arrays_are_the_batch_and_the_state():
    functions = step_functions(DEMO)
    arrays = training_arrays(DEMO, functions)
    assert arrays == batch_specs(DEMO) | state_specs(functions)


def test_the_sizes_of_prepared_vocabularies_replace_those_of_the_config():
    sizes = {"source_vocabulary": 300, "target_vocabulary": 200, "pairs": []}
    functions = step_functions(DEMO, sizes)
    weights = weight_specs(functions)
    assert weights["source_embedding"].shape[0] == 300
    assert weights["target_embedding"].shape[0] == 200
    assert weight_specs(step_functions(DEMO))["source_embedding"].shape[0] == (
        DEMO.data.source_vocabulary
    )


def test_the_table_has_every_array_with_its_bytes_and_the_totals():
    specs = {
        "wi": ArraySpec((4, 6), np.dtype(np.float32), "MH"),
        "scale": ArraySpec((4,), np.dtype(np.float32), "M"),
        "step": ArraySpec((), np.dtype(np.int32)),
    }
    mesh = Mesh(("x", "y"), (3, 2), rules={"H": ("x", "y"), "M": None})
    header, *rows = [line.split() for line in parameter_table(specs, mesh).splitlines()]
    assert header == ["name", "shape", "dtype", "sharding", "bytes", "bytes/device"]
    assert rows == [
        ["scale", "4", "float32", "M", "[-]", "16", "16"],
        ["step", "scalar", "int32", "-", "[]", "4", "4"],
        ["wi", "4x6", "float32", "MH", "[-,x*y]", "96", "16"],
        ["total", "116", "36"],
    ]


def test_the_totals_of_the_demo_are_the_sums_of_its_rows():
    lines = parameter_table(state_specs(step_functions(DEMO)), DEMO.mesh).splitlines()
    numbers = [[int(word) for word in line.split()[-2:]] for line in lines[1:]]
    assert numbers[-1] == np.sum(numbers[:-1], axis=0).tolist()
    assert numbers[-1][1] < numbers[-1][0] <= 2 * numbers[-1][1]  # two devices
