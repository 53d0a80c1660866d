"""The processes that a cluster names: environments and a metadata server are faked."""

import contextlib
import http.server
import threading
from collections.abc import Iterator, Mapping

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import processes as module
from gshard_nmt.spmd.processes import detect

NAMES = (
    *("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    *(
        "SLURM_STEP_NODELIST",
        "OMPI_MCA_orte_hnp_uri",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
    ),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "TPU_WORKER_HOSTNAMES", "TPU_PROCESS_ADDRESSES"),
    *("TPU_WORKER_ID", "JAX_FORCE_TPU_INIT", "JAX_COORDINATOR_PORT", "KUBERNETES_SERVICE_HOST"),
    *("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID"),
    # jax sets it on machines without a TPU.
    *("TPU_SKIP_MDS_QUERY", "GCE_METADATA_IP"),
)


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch):
    """The machine of the test names no cluster and has no TPU."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "_TPU_DEVICES", ())


def set_all(monkeypatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def tpu_vm(monkeypatch):
    """Makes jax and us take this machine for a TPU VM, as far as devices and libtpu tell."""
    from jax._src.clusters import cloud_tpu_cluster

    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    monkeypatch.setattr(module, "_TPU_DEVICES", ("/dev/null",))


@contextlib.contextmanager
def metadata_server(monkeypatch, attributes: Mapping[str, str]) -> Iterator[list[str]]:
    """Starts a metadata server with these instance attributes, and yields the paths that are asked for.

    jax asks several times for an attribute that is missing, half a second apart.
    """
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            value = attributes.get(
                self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
            )
            known = value is not None and self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write((value or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{server.server_port}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()


def test_slurm_gives_the_number_of_each_process(monkeypatch):
    slurm = {
        "SLURM_JOB_ID": "4711",
        "SLURM_NTASKS": "4",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "node[07-10]",
    }
    set_all(monkeypatch, slurm)
    processes = detect(30)
    assert (processes.count, processes.index, processes.peer_timeout) == (4, 2, 30)
    assert processes.coordinator.startswith("node07:")


@pytest.mark.parametrize(
    ("uri", "host"),
    [
        ("1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", "10.96.0.1"),
        ("1531576320.0;tcp6://[fe80::b9b,2620::2]:43370", "fe80::b9b"),
    ],
)
def test_open_mpi_gives_the_number_of_each_process(monkeypatch, uri, host):
    sizes = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5"}
    set_all(monkeypatch, sizes | {"OMPI_MCA_orte_hnp_uri": uri, "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    processes = detect(30)
    assert (processes.count, processes.index) == (8, 5)
    assert host in processes.coordinator


def test_open_mpi_without_a_coordinator_is_refused(monkeypatch):
    """Open MPI 5 does not name one. Each process would train alone in the same run folder."""
    set_all(monkeypatch, {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5"})
    with pytest.raises(UserError, match="--num_processes 8 --process_id 5; in each process"):
        detect(30)


ENDPOINTS = "unknown:unknown:127.0.0.1,unknown:unknown:127.0.0.2"


SLICES = (
    "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
    "MEGASCALE_COORDINATOR_ADDRESS: '127.0.0.9:8080'\n"
)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [("", ("127.0.0.1:8482", 2, 1)), (SLICES, ("127.0.0.9:8482", 4, 3))],
    ids=["one slice", "two slices are one run"],
)
def test_tpu_vms_ask_the_metadata_server(monkeypatch, tpu_vm, environment, expected):
    attributes = {"agent-worker-number": "1", "worker-network-endpoints": ENDPOINTS}
    with metadata_server(monkeypatch, attributes | {"tpu-env": environment}):
        processes = detect(30)
    assert (processes.coordinator, processes.count, processes.index) == expected


def test_a_metadata_server_that_does_not_answer_is_named(monkeypatch, tpu_vm):
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(
        UserError, match=r"cannot be detected \(ConnectionError: .*Give --coordinator"
    ):
        detect(30)


def test_without_a_tpu_nobody_asks_the_metadata_server(monkeypatch):
    with metadata_server(monkeypatch, {"agent-worker-number": "1"}) as asked:
        assert detect(30).count == 1
        monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
        assert detect(30).count == 1
    assert not asked
