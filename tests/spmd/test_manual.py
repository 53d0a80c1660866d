"""Manual regions: annotations of the lowered function, and arguments that are refused."""

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.spmd import sharding
from gshard_nmt.spmd.lowering import annotations_of
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate, auto_to_manual, manual_axes, manual_to_auto, rules

MESH = Mesh(("x", "y"), (2, 2), rules={"B": "x", "H": "y"})
ONE_DEVICE = Mesh(("x", "y"), (1, 1), rules={"B": "x", "H": "y"})


def round_trip(x, mesh=MESH):
    local = auto_to_manual(x, mesh, ["x", -1], axes=["x"])
    with manual_axes("x"):
        local = annotate(local, "BH")
    return manual_to_auto(local, mesh, ["x", -1], x.shape, axes=["x"])


@pytest.mark.parametrize("mesh", [MESH, ONE_DEVICE, None])
def test_eager_values_pass_through(mesh):
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    with rules(mesh, for_cpu=False):
        np.testing.assert_array_equal(round_trip(x), x)
        with manual_axes():
            assert not sharding.is_for_cpu()


def test_annotations_among_manual_axes_apply_to_the_other_axes():
    mesh = Mesh(("x", "y", "z"), (2, 2, 2), rules={"B": "x", "H": ("y", "z")})
    assert annotations_of(lambda x: round_trip(x, mesh), (4, 8), mesh=mesh) == [
        "{devices=[2,1,4]<=[8] last_tile_dim_replicate} unspecified_dims=[1]",
        "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual}}",
        "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}} unspecified_dims=[0,1]",
    ]
    with rules(mesh), manual_axes("x", "y", "z"):
        assert annotations_of(lambda x: x, (4, 8), mesh=mesh) == []
