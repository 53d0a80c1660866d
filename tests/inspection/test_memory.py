import numpy as np

from gshard_nmt.inspection import memory
from gshard_nmt.inspection.memory import CATEGORIES, Memory, suggestions
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd.lowering import ArraySpec, Signature
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
    categories = {
        name: memory.category_of(name, spec, MESH) for name, spec in SIGNATURE.flat_inputs()
    }
    assert categories == {
        "parameters/encoder/block/moe_0/wi": "sharded_weights",
        "parameters/source_embedding": "replicated_weights",
        "moments/row/source_embedding": "optimizer",
        "step": "batch",
        "source_ids": "batch",
    }
    average = ArraySpec((8, 16, 32), FLOAT, "EMH")
    assert memory.category_of("ema/encoder/block/moe_0/wi", average, MESH) == "optimizer"


def test_an_estimate_adds_the_arguments_to_the_temporaries():
    needed = 1000
    estimate = memory.estimated(SIGNATURE, MESH, needed, 4096, temporaries=True)
    assert estimate.is_estimate
    assert estimate.by_category["sharded_weights"] == 8 * 16 * 32 * 4 // 4
    assert estimate.by_category["replicated_weights"] == 64 * 16 * 4
    assert estimate.by_category["activations"] == needed
    assert estimate.peak == sum(estimate.by_category.values())
    assert not estimate.fits


def needs(peak: int, hbm: int, activations: int) -> Memory:
    """An estimate with 2 GiB in each category but the activations."""
    categories = dict.fromkeys(CATEGORIES, 2**31) | {"activations": activations}
    return Memory(None, None, None, None, None, peak, hbm, categories, True)


def test_settings_that_would_make_it_fit_are_named():
    config = load_config("demo", ["Data.rows = 32"])
    lines = suggestions(config, needs(2**34, 3 * 2**32, 2**33))
    # 8 of 12 GiB are not activations. So 4 of the 8 GiB of activations fit, half of the rows.
    assert any("Data.rows = 16 instead of 32: " in line for line in lines)
    assert any("4.00 GiB are left for activations" in line for line in lines)
    assert any("splits the replicated weights (2.00 GiB)" in line for line in lines)
    # The gradients of 4 GiB of weights would be kept more than once.
    assert not any("Train.microbatches" in line for line in lines)
    lines = suggestions(config, needs(2**36, 3 * 2**32, 2**35))
    assert any(line.startswith("Train.microbatches = 2 computes") for line in lines)


def test_only_rows_and_microbatches_that_divide_are_advised():
    settings = ["Mesh.axes = ('x',)", "Mesh.shape = (4,)", "Mesh.rules = {'B': 'x'}"]
    memory = needs(2**34, 3 * 2**32, 2**33)
    # 4 of 8 GiB of activations fit: 10 of 20 rows, of which 8 divide over 4 devices.
    config = load_config("demo", ["Data.rows = 20", *settings])
    assert any("Data.rows = 8 " in line for line in suggestions(config, memory))
    # With two microbatches, each device has at least two rows.
    config = load_config("demo", ["Data.rows = 24", "Train.microbatches = 2", *settings])
    assert any("Data.rows = 8 " in line for line in suggestions(config, memory))
    config = load_config("demo", ["Data.rows = 4", *settings])
    lines = suggestions(config, needs(2**36, 2**36 - 2**30, 2**35))
    assert not any("Train.microbatches" in line for line in lines)
    assert any(
        "31.00 GiB are left for activations, and 4 rows, the fewest that divide" in line
        for line in lines
    )
