"""Annotations in Shardy's dialect: the axes of each dimension, and what Shardy cannot express."""

import numpy as np
import pytest
import tensorflow as tf
from jax.interpreters import mlir
from jaxlib.mlir import ir

from gshard_nmt.errors import UserError
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.manual import auto_to_manual, manual_to_auto
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate, mesh_split, split
from gshard_nmt.spmd.shardy import in_shardy, partition_in

MESH = Mesh(("x", "y"), (2, 4), rules={"B": "x", "H": "y"}, partitioner="shardy")


def in_dialect(function, shape=(16, 12)) -> str:
    """Lowers a function of one tensor and returns its module in Shardy's dialect, as text."""
    specs = {"x": ArraySpec(shape, np.dtype(np.float32))}
    lowered = lower(lambda group: [{"y": function(group["x"])}], [specs], [{}], MESH)
    with mlir.make_ir_context():
        return str(ir.Module.parse(in_shardy(lowered.stablehlo, MESH)))


@pytest.mark.parametrize(
    ("sharding", "axes", "shape", "partition"),
    [
        ("{replicated}", ("x",), (8,), ((), ())),
        ("{devices=[2,4]<=[8]}", ("x", "y"), (2, 4), (("x",), ("y",))),
        ("{devices=[4,2]<=[2,4]T(1,0)}", ("x", "y"), (2, 4), (("y",), ("x",))),
        ("{devices=[1,8]<=[2,4]T(1,0)}", ("x", "y"), (2, 4), ((), ("y", "x"))),
        (
            "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
            *(("x", "y"), (2, 4), ((), ("y",))),
        ),
        ("{devices=[2,2]0,2,1,3}", ("x", "one", "y"), (2, 1, 2), (("y",), ("x",))),
        # Two axes of the same size: the order of the devices tells them apart.
        (
            "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}",
            ("a", "b"),
            (2, 2),
            (("b",), ()),
        ),
    ],
)
def test_the_axes_of_tiles(sharding, axes, shape, partition):
    assert partition_in(sharding, 2, axes, shape) == partition


def test_annotations_become_constraints_with_open_and_closed_dimensions():
    text = in_dialect(
        lambda x: mesh_split(tf.sin(annotate(x, "BH")), MESH, ["y", -1], unspecified_dims=[1])
    )
    assert "@Sharding" not in text
    assert '[{"x"}, {"y"}]>' in text
    assert '[{"y"}, {?}]>' in text


def manual(x):
    shard = auto_to_manual(x, MESH, ["x", -1])
    return manual_to_auto(shard + 1.0, MESH, ["x", -1], full_shape=x.shape)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (manual, "a manual region"),
        (lambda x: split(x, 1, 2), "does not follow the mesh axes"),
    ],
    ids=["manual", "other tiles"],
)
def test_what_cannot_be_expressed_is_an_error(function, what):
    with pytest.raises(UserError, match=f"(?s){what}.*Set Mesh.partitioner = 'gspmd'"):
        in_dialect(function)
