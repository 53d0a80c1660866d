"""Mesh.shared_update: devices share the update of replicated weights, and the result is the same."""

import dataclasses
import re

import numpy as np
import pytest

from gshard_nmt.spmd.mesh import Mesh
from tests.multidevice.test_meshes import DENSE, SPARSE, on_one_device, train

EXPERTS = Mesh(("x",), (8,))
TWO_AXES = Mesh(("x", "y"), (4, 2), rules={"B": "x", "H": "y", "N": "y", "V": "y"})
SCANNED = dataclasses.replace(SPARSE, decoder_layers=2, stack="scan")
RUNS = {"tensor": (DENSE, TWO_AXES), "scan": (SCANNED, EXPERTS)}


@pytest.mark.parametrize("name", RUNS)
def test_a_shared_update_computes_what_one_device_computes(name):
    model, mesh = RUNS[name]
    expected_losses, expected, alone = on_one_device(model)
    losses, state, hlo = train(model, dataclasses.replace(mesh, shared_update=True))
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-6)
    for array, value in expected.items():
        np.testing.assert_allclose(state[array], value, rtol=2e-4, atol=2e-5, err_msg=array)
    # No device updates a whole matrix, such as the target embedding [48, 16].
    assert "f32[48,16]" in updated(alone)
    assert "f32[48,16]" not in updated(hlo)


def updated(hlo: str) -> set[str]:
    """Returns the shapes of the optimizer's instructions."""
    lines = [line for line in hlo.splitlines() if "adafactor/" in line]
    return {shape for line in lines for shape in re.findall(r"= (f32\[[\d,]+\])", line)}
