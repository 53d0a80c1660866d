"""gshard-inspect with the TPU compiler: unlike programs for CPUs, these do not grow with the devices."""

import json
import pathlib
import re
import sys

import pytest

from tests.integration.conftest import command, finished, succeed, usual_flags
from tests.multidevice.collectives import collective_of

pytestmark = pytest.mark.slow

# A language model of one block: an MoE layer and a dense layer. More layers would show nothing more.
SMALL = (
    "Model.encoder_layers = 0",
    "Model.dispatch = 'einsum'",
    "Model.model_dim = 128",
    "Model.heads = 1",
    "Model.head_dim = 128",
    "Data.rows = 64",
    *(f"Data.{side}_length = 128" for side in ("source", "target")),
    *(f"Data.{side}_vocabulary = 1024" for side in ("source", "target")),
    "Mesh.shape = (8,)",
)


# One block of the decoder. Compiling takes a third of the time of the paper's width.
HALF_WIDTH = (
    "Model.encoder_layers = 0",
    "Model.decoder_layers = 2",
    "Model.model_dim = 512",
    "Model.hidden_dim = 2048",
    "Model.expert_hidden_dim = 2048",
    "Model.heads = 4",
    *(f"Model.{where}_dropout = 0.0" for where in ("input", "residual", "attention")),
    *(f"Data.{side}_vocabulary = 4096" for side in ("source", "target")),
)


def inspect(
    folder: pathlib.Path, *arguments: str, settings=SMALL, config: str = "demo", gigabytes: int = 0
):
    """Returns (JSON, report) of a config; libtpu serves one topology a process.

    `gigabytes` limits the address space of the process; 0 is no limit.
    """
    # A shell sets the limit, because a function that subprocess calls before exec needs a fork, and jax
    # warns of forks.
    limit = ["bash", "-c", f'ulimit -v {gigabytes * 10**6} && exec "$@"', "inspect"]
    file = folder / "figures.json"
    flags = [word for setting in settings for word in ("--gin", setting)]
    words = command("inspect", f"--config={config}", f"--json={file}", *flags, *arguments)
    done = succeed(finished([*(limit if gigabytes else []), *words], env=usual_flags()))
    return json.loads(file.read_text()), done.stdout


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """(JSON, report) of the same work on each core, for 8 and for 512 cores of v3."""
    topologies = ["--topology=v3:2x2", "--topology=v3:16x16"]
    return inspect(tmp_path_factory.mktemp("grown"), "--scale_with_devices", *topologies)


def test_the_program_does_not_grow_with_the_devices(grown):
    """64 times the devices and the experts."""
    records, report = grown
    assert [record["devices"] for record in records] == [8, 512]
    first, last = records
    # With many experts, gating compares tokens, which takes fewer instructions.
    expected = 0.979 * first["program_instructions"]
    assert last["program_instructions"] == pytest.approx(expected, rel=0.015)
    assert last["parameters_total"] > 20 * first["parameters_total"]
    assert "GROWTH with the number of devices" in report


def test_memory_does_not_grow_with_the_devices(tmp_path):
    """GShard section 5.1: 256 times the devices and the experts, with a model of half the paper's width.

    docs/paper_tables.md has the growth of the whole model. The peak of a small one says little, because
    it depends on the order of the instructions.
    """
    topologies = ["--topology=v3:2x2", "--topology=v3:32x32"]
    (first, last), _ = inspect(
        tmp_path, "--scale_with_devices", *topologies, settings=HALF_WIDTH, config="moe_128e_12l"
    )
    assert (first["devices"], last["devices"]) == (8, 2048)
    # 13 % more when this was written: the gates have a column for each expert.
    assert last["per_device"]["peak_bytes"] <= 1.2 * first["per_device"]["peak_bytes"]
    assert last["parameters_total"] > 100 * first["parameters_total"]


def test_a_moe_layer_has_four_all_to_alls_and_no_activation_is_gathered(grown):
    for record in grown[0]:
        collectives = {collective["kind"]: collective for collective in record["collectives"]}
        assert collectives["all-to-all"]["count"] == 4
        assert "all-gather" not in collectives
        sources = [s for collective in collectives.values() for s in collective["sources"]]
        assert all(source["asked_for"] for source in sources)


def test_a_recomputed_moe_layer_has_two_more_all_to_alls_and_they_are_marked(tmp_path):
    """The collectives of Mesh.shared_update are expected, too."""
    settings = (*SMALL, "Model.remat = 'layer'", "Mesh.shared_update = True")
    record, report = inspect(tmp_path, "--topology=v3:2x2", settings=settings)
    counts: dict[str, int] = {}
    for source in collective_of(record, "all-to-all")["sources"]:
        counts[source["direction"]] = counts.get(source["direction"], 0) + source["count"]
    assert counts == {"forward": 2, "recomputed": 2, "backward": 2}
    seconds = sum(work["seconds"] for work in record["directions"]["recomputed"].values())
    assert 0 < seconds < record["estimated_step_seconds"] / 3
    assert "recompute the forward pass" in report

    sources = [source for collective in record["collectives"] for source in collective["sources"]]
    assert all(source["asked_for"] for source in sources), report
    gathered = [source["why"] for source in collective_of(record, "all-gather")["sources"]]
    assert any(why.startswith("gathers the new ") for why in gathered)
    assert all("(Mesh.shared_update)" in why for why in gathered)


def test_the_bytes_that_a_core_sends_in_all_to_alls_do_not_grow_with_the_cores(grown):
    """GShard section 5.3: each core has a fixed amount of data, in more and smaller pieces."""
    first, last = (collective_of(record, "all-to-all") for record in grown[0])
    assert last["bytes_per_device"] == first["bytes_per_device"] > 0
    assert last["count"] == first["count"]
    for record, collective in zip(grown[0], (first, last), strict=True):
        assert {source["group_size"] for source in collective["sources"]} == {record["devices"]}


def test_every_kind_of_work_is_timed(grown):
    for record in grown[0]:
        work = record["work"]
        kinds = {"attention", "feed-forward", "experts", "gate einsums", "gating", "optimizer"}
        assert work.keys() >= kinds
        assert all(work[kind]["seconds"] > 0 for kind in kinds)
        # Forward and backward: two products of E M H for each slot, three times.
        slots = 2 * 64 * 128 // 8  # two choices of each token, a device's share
        assert work["experts"]["flops"] == pytest.approx(3 * 2 * 2 * slots * 128 * 512, rel=0.01)
        assert 0.1 < record["roofline_fraction"] <= 1
        assert record["estimated_step_seconds"] > 0


def test_memory_is_what_the_compiler_counts(grown):
    for record in grown[0]:
        memory = record["per_device"]
        assert memory["hbm_bytes"] == 16 * 2**30
        assert sum(memory["by_category"].values()) == memory["peak_bytes"]
        categories = memory["by_category"].items()
        arguments = sum(nbytes for category, nbytes in categories if category != "activations")
        # Weights, optimizer and batch are the arguments, each rounded up to the TPU's tiles.
        assert arguments == pytest.approx(memory["argument_bytes"], rel=0.02)
        assert record["fits"]


def test_a_program_that_does_not_fit_gives_both_sizes_and_the_settings_that_help(tmp_path):
    record, report = inspect(
        tmp_path,
        "--topology=v3:2x2",
        settings=(*SMALL, "Data.rows = 262144", "Model.num_groups = 8192"),
    )
    assert not record["fits"]
    assert record["program_instructions"] is None
    assert record["collectives"] is None
    assert record["estimated_step_seconds"] is None
    assert record["per_device"]["is_estimate"]
    assert record["per_device"]["peak_bytes"] > 16 * 2**30
    assert "DOES NOT FIT: HLO temporaries need" in report
    assert "are available" in report
    assert "Model.remat = 'layer' recomputes activations" in report
    (rows,) = re.findall(r"Data.rows = (\d+) instead of 262144", report)
    assert int(rows) % 8 == 0
    assert "; change Model.num_groups in proportion" in report


def test_a_later_chip_compiles_the_same_step(tmp_path):
    record, _ = inspect(tmp_path, "--topology=v6e:2x4")
    assert record["devices"] == 8
    assert collective_of(record, "all-to-all")["count"] == 4
    assert record["estimated_step_seconds"] > 0


def test_a_pipeline_with_dropout_compiles_in_little_memory(tmp_path):
    """The compiler copies the code of random keys that loops share, if it may, until memory runs out."""
    settings = [
        *("X = 2", "Y = 4", "STACK_LAYERS = 2", "ROWS = 32", "GROUPS = 32"),
        *("Model.encoder_layers = 0", "Model.hidden_dim = 1024", "Train.microbatches = 4"),
    ]
    record, _ = inspect(
        *(tmp_path, "--topology=v3:2x2"), settings=settings, config="dense_96l_gpipe", gigabytes=7
    )
    # Two stages and four microbatches are five iterations forward and five backward.
    assert collective_of(record, "collective-permute")["count"] >= 10


LOOP = """
from scripts.paper_layers import LOOP, compiled_operator
print(compiled_operator(*LOOP)[0].text)
"""


def test_a_product_of_two_split_matrices_is_a_loop_in_which_no_operand_is_whole():
    """GShard Figure 4c: each of 32 devices multiplies its rows by one slice of the columns at a time."""
    code = [sys.executable, "-c", LOOP]
    text = succeed(finished(code, env=usual_flags(), cwd=pathlib.Path(__file__).parents[2])).stdout
    assert re.search(r"\) while\(", text)
    assert "collective-permute" in text
    assert "all-gather" not in text
    # AB[32 * 1024, 4096] and BC[4096, 32 * 1024]; a device has 1024 rows, and 1024 columns.
    shapes = set(re.findall(r"f32\[([\d,]+)\]", text))
    assert {"1024,4096", "4096,1024"} <= shapes
    assert not {"32768,4096", "4096,32768"} & shapes
