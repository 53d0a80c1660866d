"""gshard-inspect with the TPU compiler: `make test-all` installs it, and these tests need it.

Claims about growth with the number of devices are shown here: on CPUs an all-to-all has an operand for
each device, so that a CPU program grows with them.
"""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from tests.integration.conftest import environment

pytestmark = pytest.mark.slow

# A language model of one block: an MoE layer and a dense one. A program of twice the layers says no more.
SMALL = (
    "Model.encoder_layers = 0",
    "Model.dispatch = 'einsum'",
    "Model.model_dim = 128",
    "Model.heads = 1",
    "Model.head_dim = 128",
    "Data.rows = 64",
    "Data.source_length = 128",
    "Data.target_length = 128",
    "Data.source_vocabulary = 1024",
    "Data.target_vocabulary = 1024",
    "Mesh.shape = (8,)",
    # Gates are replicated, as in Algorithm 2.
    "Mesh.overrides = {'*/gate': {'E': None}}",
)


def inspect(folder: pathlib.Path, *arguments: str, settings=SMALL):
    """(JSON, report) of the demo; each call is a process, as libtpu is at home in one."""
    file = folder / "found.json"
    flags = [word for setting in settings for word in ("--gin", setting)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "gshard_nmt",
            "inspect",
            "--config=demo",
            f"--json={file}",
            *flags,
            *arguments,
        ],
        capture_output=True,
        text=True,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text()), done.stdout


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """The same work a core on 8 and on 128 cores of v3."""
    topologies = ["--topology=v3:2x2", "--topology=v3:8x8"]
    return inspect(tmp_path_factory.mktemp("grown"), "--scale_with_devices", *topologies)


def test_the_program_does_not_grow_with_the_devices(grown):
    records, report = grown
    assert [record["devices"] for record in records] == [8, 128]
    first, last = records
    # 65 more of 5,611; of a program of 36 layers, 29,786 instructions, 130 more from 8 to 2048 cores.
    assert last["program_instructions"] == pytest.approx(first["program_instructions"], rel=0.015)
    peaks = [record["per_device"]["peak_bytes"] for record in records]
    assert peaks[-1] <= 1.05 * peaks[0]
    assert last["parameters_total"] > 8 * first["parameters_total"]
    assert "GROWTH with the number of devices" in report


def test_a_moe_layer_has_four_all_to_alls_and_no_activation_is_gathered(grown):
    for record in grown[0]:
        kinds = {one["kind"]: one for one in record["collectives"]}
        assert kinds["all-to-all"]["count"] == 4
        assert "all-gather" not in kinds
        assert all(s["asked_for"] for one in record["collectives"] for s in one["sources"])


def test_where_a_layer_is_recomputed_it_has_two_more_and_they_say_so(tmp_path):
    again = (*SMALL, "Model.remat = 'layer'")
    record, report = inspect(tmp_path, "--topology=v3:2x2", settings=again)
    (found,) = (one for one in record["collectives"] if one["kind"] == "all-to-all")
    counts: dict[str, int] = {}
    for source in found["sources"]:
        counts[source["direction"]] = counts.get(source["direction"], 0) + source["count"]
    assert counts == {"forward": 2, "recomputed": 2, "backward": 2}
    again = sum(work["seconds"] for work in record["directions"]["recomputed"].values())
    assert 0 < again < record["estimated_step_seconds"] / 3
    assert "compute the forward pass again" in report


def test_an_all_to_all_grows_as_the_root_of_the_devices(grown):
    def seconds(record):
        (found,) = (one for one in record["collectives"] if one["kind"] == "all-to-all")
        return sum(source["seconds"] for source in found["sources"])

    first, last = (seconds(record) for record in grown[0])
    assert last / first == pytest.approx(4.0, rel=0.05)  # 16 times the devices


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
        held = sum(v for k, v in memory["by_category"].items() if k != "activations")
        # Weights, optimiser and batch are the arguments, each rounded up to the TPU's tiles.
        assert held == pytest.approx(memory["argument_bytes"], rel=0.02)
        assert record["fits"]


def test_what_does_not_fit_gives_both_sizes_and_the_settings_that_help(tmp_path):
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
    (fewer,) = re.findall(r"Data.rows = (\d+) instead of 262144", report)
    assert int(fewer) % 8 == 0
    assert "Model.num_groups in proportion to Data.rows" in report


@pytest.mark.parametrize("topology", ["v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x4"])
def test_later_chips_compile_the_same_step(tmp_path, topology):
    record, _ = inspect(tmp_path, f"--topology={topology}")
    kinds = {one["kind"]: one["count"] for one in record["collectives"]}
    assert record["devices"] == 8
    assert kinds["all-to-all"] == 4
    assert record["estimated_step_seconds"] > 0


def test_decoding_counts_every_step_of_the_search(tmp_path):
    translates = (*SMALL, "Model.encoder_layers = 2")
    record, report = inspect(tmp_path, "--topology=v3:2x2", "--decoding", settings=translates)
    assert record["step"] == "decoding"
    assert "all 128 steps of the search" in report
    assert any(one["count"] >= 128 for one in record["collectives"])
