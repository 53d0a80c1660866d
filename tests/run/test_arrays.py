"""The specs of a run's arrays, the groups of a state, and the table of parameters."""

import re

import numpy as np
import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import (
    as_groups,
    from_groups,
    parameter_table,
    state_specs,
    step_functions,
    weight_specs,
    weights_of,
)
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from tests.data.synthetic import write_prepared_data

DEMO = load_config("demo")


@pytest.mark.parametrize("ema", [0.0, 0.99])
def test_a_state_is_its_groups(ema):
    functions = step_functions(DEMO.replace(train={"ema": ema}))
    state = state_specs(functions)
    groups = as_groups(state)
    assert from_groups({**groups, "input": {}}) == state
    assert sum(map(len, groups.values())) == len(state)
    assert groups.keys() == {"parameters", "optimizer"} | ({"ema"} if ema else set())
    assert "step" in groups["optimizer"]
    assert groups["parameters"].keys() == functions.declare_parameters().keys()
    assert weight_specs(functions) == weights_of(state) == groups["parameters"]
    # The average has the shapes, letters and dtypes of the weights.
    assert groups.get("ema", groups["parameters"]) == groups["parameters"]


def test_the_languages_are_counted_as_the_data_counts_them(tmp_path):
    """A run may name a language by another code than its data."""
    data = write_prepared_data(tmp_path / "data", DEMO.data, {"fr": 4, "de": 4})
    for names, number in ((("fra_Latn", "de"), 2), (("deu",), 1), ((), 2)):
        config = DEMO.replace(data={"languages": names})
        assert len(data.languages(config.data)) == number
        assert step_functions(config, data.summary(config.data)).languages == number


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


def test_a_pattern_freezes_all_weights_that_it_matches():
    functions = step_functions(DEMO.replace(train={"freeze": ("encoder/*", "source_embedding")}))
    assert "encoder/block/moe_0/gate" in functions.frozen
    assert "encoder/final_norm/scale" in functions.frozen
    assert {name.split("/")[0] for name in functions.frozen} == {"encoder", "source_embedding"}
    state = state_specs(functions)
    moments = [name for name in state if name.startswith("moments/")]
    assert not [name for name in moments if "encoder/block" in name or "source_emb" in name]
    assert weight_specs(functions) == weight_specs(step_functions(DEMO))
    assert state_specs(step_functions(DEMO)).keys() > state.keys()
    assert step_functions(DEMO).frozen == ()


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (("sourceembedding",), "no weight has such a name; did you mean 'source_embedding'?"),
        (("encoder/*", "qqq*"), "Train.freeze has 'qqq*', and no weight has such a name. Give the"),
        (("*",), r"matches all weights, so there is nothing to train"),
    ],
)
def test_a_pattern_that_freezes_nothing_or_everything_is_an_error(patterns, message):
    with pytest.raises(UserError, match=re.escape(message)):
        step_functions(DEMO.replace(train={"freeze": patterns}))
