"""gshard-inspect on real programs, compiled for CPU devices."""

import json
import re

import pytest

from gshard_nmt import inspect_config as inspect
from gshard_nmt.run.arrays import state_specs, step_functions
from gshard_nmt.settings.gin_reader import load_config
from tests.multidevice.collectives import collective_of
from tests.multidevice.test_equivalence import LAYERS
from tests.multidevice.test_equivalence import SMALL as SIZES

DECODER = (*LAYERS, *SIZES, "Model.encoder_layers = 0")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """The JSON of the demo on 4 devices."""
    file = tmp_path_factory.mktemp("inspected") / "figures.json"
    inspect.inspect(inspect.Request(load_config("demo", DECODER), "demo", ["cpu:4"]), file)
    return json.loads(file.read_text())


def test_the_json_has_the_promised_keys(record):
    assert record["topology"] == "cpu:4"
    # Scripts of users read these keys.
    assert record.keys() >= {
        *("config", "topology", "devices", "parameters_total", "parameters_active_per_token"),
        *("lower_seconds", "compile_seconds", "program_instructions", "code_bytes", "per_device"),
        *("collectives", "flops_per_device", "bytes_accessed_per_device", "estimated_step_seconds"),
        "roofline_fraction",
    }
    assert record["per_device"].keys() >= {
        *("argument_bytes", "temp_bytes", "output_bytes", "alias_bytes", "peak_bytes", "hbm_bytes"),
        "by_category",
    }
    for collective in record["collectives"]:
        assert collective.keys() >= {"kind", "count", "bytes_per_device", "sources"}
    assert record["estimated_step_seconds"] is None  # only chips have times


def test_memory_is_split_into_categories(record):
    state = state_specs(step_functions(load_config("demo", DECODER))).items()
    weights = ("moe_0/wi", "moe_0/wo")
    experts = sum(s.nbytes for k, s in state if k.startswith("parameters/") and k.endswith(weights))
    moments = sum(s.nbytes for k, s in state if k.startswith("moments/"))
    memory = record["per_device"]
    assert sum(memory["by_category"].values()) == memory["peak_bytes"]
    assert memory["by_category"]["sharded_weights"] >= experts // 4
    assert 0 < memory["by_category"]["optimizer"] <= moments
    # The state is donated: the new one takes the place of the old.
    assert memory["alias_bytes"] > 0.9 * memory["output_bytes"]


def test_each_moe_layer_has_four_all_to_alls_and_says_what_they_carry(record):
    all_to_all = collective_of(record, "all-to-all")
    sources = all_to_all["sources"]
    assert all_to_all["count"] == 4
    assert {source["layer"] for source in sources} == {"decoder 0 moe_0"}
    assert {source["part"] for source in sources} == {"dispatch", "combine"}
    assert all(source["asked_for"] and source["group_size"] == 4 for source in sources)
    # A device sends E/devices x G/devices x C x M floats to each of the devices.
    assert sum(source["bytes_per_device"] for source in sources) == all_to_all["bytes_per_device"]


def test_the_gradient_of_every_dense_weight_is_added_up_once(record):
    products = re.compile(r"attention_0/(query|key|value|output),")
    sources = collective_of(record, "all-reduce")["sources"]
    assert len([source for source in sources if products.search(source["why"])]) == 4
