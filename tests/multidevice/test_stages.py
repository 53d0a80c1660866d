"""A function of each stage, on the devices of the stage."""

import numpy as np
import tensorflow as tf

from gshard_nmt.model.stages import Lettered, _partition, on_stages
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate
from tests.multidevice.collectives import collectives
from tests.multidevice.compiled_function import CompiledFunction
from tests.multidevice.partitioning import ranks

MESH = Mesh(("stage", "tensor"), (2, 4), rules={"P": "stage", "B": ("stage",), "H": "tensor"})


def test_each_stage_sees_its_own_row_and_the_whole_of_the_others():
    """Two devices have two of the four stages each. The hidden units are split inside of a stage."""

    def stage(carried, own, every):
        hidden = annotate(tf.einsum("BM,MH->BH", carried["x"], own["w"]), "BH")
        return {"x": tf.einsum("BH,HM->BM", hidden, every["v"])}

    def function(x, w, v):
        return on_stages(
            stage, {"x": Lettered(x, "PBM")}, {"w": Lettered(w, "PMH")}, {"v": Lettered(v, "HM")}
        )["x"]

    shapes = (4, 2, 3), (4, 3, 8), (8, 3)
    program = CompiledFunction(function, *shapes, mesh=MESH)
    x, w, v = (ranks(shape) for shape in shapes)
    np.testing.assert_allclose(program()[0], np.einsum("PBM,PMH,HN->PBN", x, w, v), rtol=1e-6)
    assert not [axes for _, axes in collectives(program.text, MESH) if axes == "stage tensor"]


def test_a_parameter_of_the_stages_follows_the_overrides_of_the_mesh():
    """Activations split M, and weights split H. The axis of the stages splits only the stages."""
    mesh = Mesh(
        ("stage", "tensor"),
        (2, 4),
        rules={"P": "stage", "R": "stage", "M": "tensor", "H": ("stage", "tensor")},
        overrides={"*/wi": {"M": None}, "*/wo": [None, ("stage", "tensor"), None]},
    )
    stage, tensor = ("stage",), ("tensor",)
    for name, letters, expected in (
        ("decoder/block/wi", "P__MH", [stage, (), (), (), tensor]),
        ("decoder/block/wo", "P__HM", [stage, (), (), tensor, ()]),
        ("", "PBLM", [stage, (), (), tensor]),
    ):
        assert _partition(mesh, Lettered(tf.zeros([1] * len(letters)), letters, name)) == expected
