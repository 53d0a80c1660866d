import numpy as np
import pytest

from gshard_nmt.inspection import memory
from gshard_nmt.inspection.memory import CATEGORIES, Memory
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.ahead_of_time import DoesNotFit
from gshard_nmt.spmd.lowering import ArraySpec, Signature, flatten
from gshard_nmt.spmd.mesh import Mesh

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int32)
MESH = Mesh(("x",), (4,))
SIGNATURE = Signature(
    (
        {
            "parameters/encoder/block/moe_0/wi": ArraySpec((8, 16, 32), FLOAT, "EMH"),
            "parameters/source_embedding": ArraySpec((64, 16), FLOAT, "VM"),
            "moments/row/source_embedding": ArraySpec((64,), FLOAT, "V"),
            "step": ArraySpec((), INT),
        },
        {"source_ids": ArraySpec((8, 16), INT, "BL")},
    ),
    (),
)


def test_each_argument_has_its_category():
    assert {
        name: memory.category_of(name, spec, MESH) for name, spec in flatten(SIGNATURE.inputs)
    } == {
        "parameters/encoder/block/moe_0/wi": "sharded_weights",
        "parameters/source_embedding": "replicated_weights",
        "moments/row/source_embedding": "optimizer",
        "step": "batch",
        "source_ids": "batch",
    }
    average = ArraySpec((8, 16, 32), FLOAT, "EMH")
    assert memory.category_of("ema/encoder/block/moe_0/wi", average, MESH) == "optimizer"


def test_an_estimate_adds_the_arguments_to_the_temporaries():
    estimate = memory.estimated(SIGNATURE, MESH, DoesNotFit(1000, 4096, "HLO temporaries"))
    assert estimate.is_estimate
    assert estimate.by_category["sharded_weights"] == 8 * 16 * 32 * 4 // 4
    assert estimate.by_category["replicated_weights"] == 64 * 16 * 4
    assert estimate.by_category["activations"] == 1000
    assert estimate.peak == sum(estimate.by_category.values())
    assert not estimate.fits


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        # 8 of 12 GiB are not activations. So 4 of the 8 GiB of activations fit, half of the rows.
        (["Data.rows = 32"], "Data.rows = 16 instead of 32; change Model.num_groups"),
        # 10 of 20 rows fit, of which 8 divide over 4 devices, or over 2 devices and 2 microbatches.
        (["Data.rows = 20", "Mesh.shape = (4,)"], "Data.rows = 8 instead of 20"),
        (["Data.rows = 24", "Train.microbatches = 2"], "Data.rows = 12 instead of 24"),
        (["Data.rows = 4", "Mesh.shape = (4,)"], ""),
    ],
)
def test_settings_that_would_make_it_fit_are_named(settings, rows):
    categories = dict.fromkeys(CATEGORIES, 2**31) | {"activations": 2**33}
    needed = Memory(None, None, None, None, None, 2**34, 3 * 2**32, categories, True)
    error = DoesNotFit(2**34, 3 * 2**32, "the program's arrays")
    text = "\n".join(memory.what_would_help(load_config("demo", settings), needed, error))
    assert "need 16.00 GiB, but only 12.00 GiB are available: 4.00 GiB too much." in text
    assert "Model.remat = 'layer' recomputes activations" in text
    assert "Model.activation_dtype = 'bfloat16' halves the activations" in text
    assert rows in text if rows else "Data.rows" not in text
