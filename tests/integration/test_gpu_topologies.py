"""gshard-inspect with the GPU compiler, which `make test-all` installs. There is no GPU here."""

import json

import pytest

from gshard_nmt.spmd.topology import CHIPS
from tests.integration.conftest import program, succeed, usual_flags

pytestmark = pytest.mark.slow

SETTINGS = (
    "Model.encoder_layers = 0",
    "Model.decoder_layers = 2",
    "Model.dispatch = 'einsum'",
    "Data.rows = 16",
    *(f"Data.{side}_vocabulary = 1024" for side in ("source", "target")),
    "Model.experts = 16",
    "Model.num_groups = 16",
)


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """(JSON of 8 GPUs of a host and of 16 GPUs of two, report) of a small language model."""
    file = tmp_path_factory.mktemp("gpus") / "figures.json"
    flags = [word for setting in SETTINGS for word in ("--gin", setting)]
    flags += ["--config=demo", f"--json={file}", "--topology=h100:8", "--topology=a100:16"]
    done = succeed(program("inspect", *flags, env=usual_flags()))
    return json.loads(file.read_text()), done.stdout


def collectives(record: dict) -> dict[str, dict]:
    return {collective["kind"]: collective for collective in record["collectives"]}


def test_the_program_of_a_gpu_has_the_collectives_of_its_experts(inspected):
    for record, devices in zip(inspected[0], (8, 16), strict=True):
        by_kind = collectives(record)
        assert record["devices"] == devices
        assert set(by_kind) == {"all-to-all", "all-reduce"}
        assert by_kind["all-to-all"]["count"] == 4
        reasons = [source["why"] for source in by_kind["all-to-all"]["sources"]]
        assert sum("sends tokens to their experts" in why for why in reasons) == 2


def test_packed_gradients_are_named_by_their_weights(inspected):
    sources = collectives(inspected[0][0])["all-reduce"]["sources"]
    reasons = " ".join(source["why"] for source in sources)
    assert "the gradient of target_embedding" in reasons
    assert "the gradient of decoder/block/feed_forward_1/wi" in reasons


def test_the_memory_is_that_of_the_gpu(inspected):
    for record, name in zip(inspected[0], ("h100", "a100"), strict=True):
        memory = record["per_device"]
        assert memory["hbm_bytes"] == CHIPS[name].hbm_bytes
        assert 2**20 < memory["peak_bytes"] < 2**28


def test_two_hosts_send_over_the_slower_network(inspected):
    inside, outside = (
        sum(source["seconds"] for source in collective["sources"]) / collective["bytes_per_device"]
        for collective in (collectives(record)["all-to-all"] for record in inspected[0])
    )
    # In a host, 7 of 8 pieces use NVLink. With two hosts, 8 of 16 pieces use the network.
    links = CHIPS["h100"].link_bandwidth, CHIPS["a100"].network_bandwidth
    assert outside / inside == pytest.approx((8 / 16 / links[1]) / (7 / 8 / links[0]))
    assert "(on GPUs its roofline)" in inspected[1]
