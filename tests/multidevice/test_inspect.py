"""gshard-inspect on real programs: compiled for CPU devices, and run on them."""

import json

import numpy as np
import pytest

from gshard_nmt import inspect
from gshard_nmt.checks import equivalence
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import state_specs, step_functions
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import resize
from gshard_nmt.spmd.mesh import Mesh

SMALL = (
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
# "config" to "roofline_fraction": what users script against.
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


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """The report, the JSON and the page of the demo on 2 and 4 devices."""
    folder = tmp_path_factory.mktemp("inspected")
    request = inspect.Request(load_config("demo", SMALL), "demo", ["cpu:2", "cpu:4"])
    inspect.inspect(request, folder / "found.json", folder / "found.html")
    return json.loads((folder / "found.json").read_text()), (folder / "found.html").read_text()


def test_the_json_has_the_promised_keys(inspected):
    records, _ = inspected
    assert [record["topology"] for record in records] == ["cpu:2", "cpu:4"]
    for record in records:
        assert record.keys() >= KEYS
        assert record["per_device"].keys() >= MEMORY_KEYS
        for collective in record["collectives"]:
            assert collective.keys() >= {"kind", "count", "bytes_per_device", "sources"}
        assert record["estimated_step_seconds"] is None  # times are a chip's


def test_memory_is_split_by_what_holds_it(inspected):
    records, _ = inspected
    config = load_config("demo", SMALL)
    state = state_specs(step_functions(config)).items()
    experts = sum(spec.nbytes for name, spec in state if name.endswith(("moe_0/wi", "moe_0/wo")))
    moments = sum(spec.nbytes for name, spec in state if name.startswith("moments/"))
    for record, devices in zip(records, (2, 4), strict=True):
        memory = record["per_device"]
        assert sum(memory["by_category"].values()) == memory["peak_bytes"]
        held = experts - sum(
            s.nbytes for n, s in state if n.startswith("moments/") and "moe_0/w" in n
        )
        assert memory["by_category"]["sharded_weights"] >= held // devices
        assert 0 < memory["by_category"]["optimizer"] <= moments
        # The state is donated: the new one takes the place of the old.
        assert memory["alias_bytes"] > 0.9 * memory["output_bytes"]


def test_each_moe_layer_has_four_all_to_alls_and_says_what_they_carry(inspected):
    for record in inspected[0]:
        (found,) = (each for each in record["collectives"] if each["kind"] == "all-to-all")
        assert found["count"] == found["instructions"] == 2 * 4
        assert {source["layer"] for source in found["sources"]} == {
            "encoder 0 moe_0",
            "decoder 0 moe_0",
        }
        assert {source["part"] for source in found["sources"]} == {"dispatch", "combine"}
        assert all(source["asked_for"] for source in found["sources"])
        assert all(source["group_size"] == record["devices"] for source in found["sources"])
        # A device sends E/devices x G/devices x C x M floats to each of the devices.
        assert (
            sum(source["bytes_per_device"] for source in found["sources"])
            == (found["bytes_per_device"])
        )


def test_every_dense_weights_gradient_is_added_up_once(inspected):
    for record in inspected[0]:
        (found,) = (each for each in record["collectives"] if each["kind"] == "all-reduce")
        added = [s["why"] for s in found["sources"] if "feed_forward_1/w" in s["why"]]
        assert len(added) == 4  # wi and wo, encoder and decoder


def test_the_page_is_whole_and_needs_no_network(inspected):
    page = inspected[1]
    assert page.count("data:image/svg+xml;base64,") == 2  # memory and time; growth
    assert "{{" not in page
    assert "http" not in page.split("base64,")[0]
    assert "GROWTH with the number of devices" in page


def test_a_config_computes_on_a_mesh_what_it_computes_on_one_device(capsys):
    mesh = ("Mesh.axes = ('x', 'y')", "Mesh.shape = (2, 2)")
    rules = "Mesh.rules = {'B': 'x', 'G': 'x', 'E': 'x', 'H': 'y', 'N': 'y'}"
    equivalence.show_equivalence(load_config("demo", [*SMALL, *mesh, rules]), "demo", 4)
    out = capsys.readouterr().out
    assert "encoder/block/moe_0/wi [0]" in out
    assert "DIFFERENT" not in out
    assert "on 1 device and on 4 (x=2 x y=2) are equal within" in out


def test_a_difference_is_named_and_is_an_error(monkeypatch):
    found = [
        equivalence.Comparison("loss", 1e-7, 5e-5),
        equivalence.Comparison("encoder/block/moe_0/gate [0]", 0.3, 5e-5),
        equivalence.Comparison("source_embedding", float("nan"), 5e-5),
    ]
    monkeypatch.setattr(equivalence, "compare", lambda *arguments: found)
    with pytest.raises(UserError, match=r"2 of 3 tensors differ .* first encoder/block/moe_0/gate"):
        equivalence.show_equivalence(load_config("demo", SMALL), "demo", 2)


def test_a_reduced_mesh_splits_every_axis_that_was_split():
    mesh = Mesh(("x", "y"), (32, 64), rules={})
    assert equivalence.reduced_mesh(mesh, 8).shape == (4, 2)
    assert equivalence.reduced_mesh(Mesh(("x",), (2048,)), 8).shape == (8,)
    with pytest.raises(UserError, match=r"give --devices 4, or another power of 2"):
        equivalence.reduced_mesh(mesh, 6)


def test_a_reduced_batch_is_packed_and_padded():
    batch = equivalence.random_batch(["source_ids", "source_segments", "source_positions"], 4)
    segments, positions = batch["source_segments"], batch["source_positions"]
    assert {tuple(np.unique(row)) for row in segments} == {(0, 1, 2)}
    starts = (segments[:, 1:] != segments[:, :-1]) | (segments[:, 1:] == 0)
    assert (positions[:, 1:][starts] == 0).all()
