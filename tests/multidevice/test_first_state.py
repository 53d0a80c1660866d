"""The first state: the same on any mesh, and each device draws only its own shards."""

import math
import re

import numpy as np

from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import CONTROL, letters_of, state_specs
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import COLLECTIVE_KINDS
from tests.model.examples import MOE
from tests.multidevice.compiled_function import Compiled, control

TENSOR = {"B": "x", "G": "x", "E": "x", "H": "y", "N": "y", "M": "y"}
# The queries of all layers have one shape and are drawn together, but the encoder's are split otherwise.
MESH = Mesh(("x", "y"), (4, 2), rules=TENSOR, overrides={"*encoder*query": {"M": "x", "N": None}})


def first_state(mesh: Mesh):
    """Returns the state of step 0 as the devices hold it, and the results of collectives that made it."""
    functions = StepFunctions(MOE, Optimizer(min_factored_size=8), 40, 48, languages=3)
    compiled = Compiled(functions.initialize, [CONTROL], [letters_of(state_specs(functions))], mesh)
    (state,) = compiled.program(*compiled.put(control()))
    kinds = "|".join(COLLECTIVE_KINDS)
    return state, re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", compiled.text)


def test_every_device_draws_its_own_shards_of_the_same_state():
    state, collectives = first_state(MESH)
    for key, values in first_state(Mesh(("x",), (1,)))[0].items():
        np.testing.assert_array_equal(state[key], np.asarray(values), err_msg=key)
    # Counters of rows may move, which are shared between parameters. Weights and their bits may not.
    sizes = [
        math.prod(int(n) for n in shape.split(","))
        for result in collectives
        for shape in re.findall(r"\w+\[([\d,]+)\]", result)
    ]
    assert all(size <= 2 * MOE.model_dim for size in sizes), collectives
    experts = state["parameters/encoder/block/moe_0/wi"]
    assert experts.addressable_shards[0].data.size < experts.size
