"""gshard-inspect on real programs, compiled for CPU devices."""

import json
import re

import pytest

from gshard_nmt import inspect_config as inspect
from gshard_nmt.run.arrays import state_specs, step_functions
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import ahead_of_time, runtime

SMALL = (
    "Model.encoder_layers = 1",
    "Model.decoder_layers = 1",
    "Model.moe_every = 1",
    "Model.model_dim = 16",
    "Model.hidden_dim = 32",
    "Model.expert_hidden_dim = 32",
    "Model.heads = 2",
    "Model.head_dim = 8",
    "Data.rows = 8",
    "Data.source_length = 16",
    "Data.target_length = 16",
    "Data.source_vocabulary = 320",
    "Data.target_vocabulary = 320",
)
# Scripts of users read these keys.
KEYS = {
    *("config", "topology", "devices", "parameters_total", "parameters_active_per_token"),
    *("lower_seconds", "compile_seconds", "program_instructions", "code_bytes", "per_device"),
    *("collectives", "flops_per_device", "bytes_accessed_per_device", "estimated_step_seconds"),
    "roofline_fraction",
}
MEMORY_KEYS = {
    *("argument_bytes", "temp_bytes", "output_bytes", "alias_bytes", "peak_bytes", "hbm_bytes"),
    "by_category",
}


def collective_of(record: dict, kind: str) -> dict:
    """The only entry of a kind of collective."""
    (collective,) = (c for c in record["collectives"] if c["kind"] == kind)
    return collective


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """The JSON of the demo on 2 and 4 devices."""
    folder = tmp_path_factory.mktemp("inspected")
    request = inspect.Request(load_config("demo", SMALL), "demo", ["cpu:2", "cpu:4"])
    inspect.inspect(request, folder / "figures.json")
    return json.loads((folder / "figures.json").read_text())


def test_the_json_has_the_promised_keys(inspected):
    records = inspected
    assert [record["topology"] for record in records] == ["cpu:2", "cpu:4"]
    for record in records:
        assert record.keys() >= KEYS
        assert record["per_device"].keys() >= MEMORY_KEYS
        for collective in record["collectives"]:
            assert collective.keys() >= {"kind", "count", "bytes_per_device", "sources"}
        assert record["estimated_step_seconds"] is None  # only chips have times


def test_memory_is_split_into_categories(inspected):
    records = inspected
    config = load_config("demo", SMALL)
    state = state_specs(step_functions(config)).items()
    experts = sum(spec.nbytes for name, spec in state if name.endswith(("moe_0/wi", "moe_0/wo")))
    moments = sum(spec.nbytes for name, spec in state if name.startswith("moments/"))
    for record, devices in zip(records, (2, 4), strict=True):
        memory = record["per_device"]
        assert sum(memory["by_category"].values()) == memory["peak_bytes"]
        expert_moments = sum(
            spec.nbytes for name, spec in state if name.startswith("moments/") and "moe_0/w" in name
        )
        expert_weights = experts - expert_moments
        assert memory["by_category"]["sharded_weights"] >= expert_weights // devices
        assert 0 < memory["by_category"]["optimizer"] <= moments
        # The state is donated: the new one takes the place of the old.
        assert memory["alias_bytes"] > 0.9 * memory["output_bytes"]


def test_each_moe_layer_has_four_all_to_alls_and_says_what_they_carry(inspected):
    for record in inspected:
        all_to_all = collective_of(record, "all-to-all")
        assert all_to_all["count"] == all_to_all["instructions"] == 2 * 4
        assert {source["layer"] for source in all_to_all["sources"]} == {
            "encoder 0 moe_0",
            "decoder 0 moe_0",
        }
        assert {source["part"] for source in all_to_all["sources"]} == {"dispatch", "combine"}
        assert all(source["asked_for"] for source in all_to_all["sources"])
        assert all(source["group_size"] == record["devices"] for source in all_to_all["sources"])
        # A device sends E/devices x G/devices x C x M floats to each of the devices.
        assert (
            sum(source["bytes_per_device"] for source in all_to_all["sources"])
            == (all_to_all["bytes_per_device"])
        )


def test_the_gradient_of_every_dense_weight_is_added_up_once(inspected):
    for record in inspected:
        all_reduce = collective_of(record, "all-reduce")
        products = re.compile(r"attention_0/(query|key|value|output),")
        added = [source for source in all_reduce["sources"] if products.search(source["why"])]
        assert len(added) == 3 * 4  # of two attention layers in the decoder and one in the encoder


def test_the_decoding_step_is_compiled_as_gshard_decode_compiles_it(monkeypatch, capsys):
    """Its sums have the order that does not depend on the number of rows."""
    options = []

    def compile_for(topology, devices, lowered, donate=(), independent_rows=False):
        options.append(devices.compiler_options(independent_rows))
        raise ahead_of_time.DoesNotFit(2, 1, "the program's arrays")

    monkeypatch.setattr(ahead_of_time, "compile_for", compile_for)
    config = load_config("demo", [*SMALL, "Decode.rows = 3", "Decode.source_lengths = (8,)"])
    inspect.inspect(inspect.Request(config, "demo", ["cpu:2"], decoding=True))
    (chosen,) = options
    assert runtime._INDEPENDENT_ROWS.items() <= chosen.items()
    assert "32 sources of 8 tokens" in " ".join(capsys.readouterr().out.split())
