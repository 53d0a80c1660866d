"""The regularizers of the experts on a mesh: the values of one device, and the collectives."""

import pytest

from gshard_nmt.inspection import equivalence
from gshard_nmt.model.regularizers import exchange
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate
from tests.multidevice.collectives import collectives
from tests.multidevice.compiled_function import CompiledFunction
from tests.multidevice.test_equivalence import SMALL

REGULARIZED = (
    "Model.encoder_layers = 0",
    "Model.decoder_layers = 1",
    "Model.moe_every = 1",
    "Model.shared_expert_dim = 32",
    "Model.expert_output_masking = 0.2",
    "Model.gating_dropout = 0.999999",
    "Mesh.axes = ('x', 'y')",
    "Mesh.shape = (2, 2)",
    "Mesh.rules = {'B': 'x', 'G': 'x', 'E': 'x', 'H': 'y', 'N': 'y'}",
)
PIPELINED = (
    *("Model.decoder_layers = 2", "Model.stack = 'pipeline'", "Model.stages = 2"),
    *("Train.microbatches = 2", "Mesh.rules = {'P': 'x', 'R': 'x', 'B': 'y', 'G': 'y', 'E': 'y'}"),
)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), PIPELINED], ids=["unrolled", "pipelined"])
def test_a_mesh_computes_what_one_device_computes_if_tokens_stay_at_home(more, capsys):
    equivalence.show_equivalence(load_config("demo", [*SMALL, *REGULARIZED, *more]), "demo", 4)
    out = capsys.readouterr().out
    assert "decoder/block/moe_0/shared/wi [0]" in out
    assert "DIFFERENT" not in out


def test_tokens_that_stay_at_home_need_no_communication():
    """The program has one all-to-all, in the branch for steps in which tokens travel."""
    mesh = Mesh(("x",), (4,), {"G": "x", "E": "x"})

    def exchanged(slots, draw):
        return exchange(annotate(slots, "GECM"), "EGCM", draw[0] < 0.5, homes=4)

    compiled = CompiledFunction(exchanged, (8, 4, 2, 16), (1,), mesh=mesh, letters="EGCM")
    assert collectives(compiled.text, mesh) == {("all-to-all", "x"): 1}
