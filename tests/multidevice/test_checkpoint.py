"""A checkpoint that was written on one mesh is read on another one, and checked without a gather."""

import re

import jax.monitoring
import numpy as np
import pytest

from gshard_nmt.run.checkpoint import checksums
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, flat
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.checksums import on_host
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import COLLECTIVE_KINDS
from tests.run.checkpoints import assert_equal

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)
SPECS = {
    "experts": ArraySpec((2, 8, 16, 24), F32, "REMH"),
    "embedding": ArraySpec((40, 16), F32, "VM"),
    "vector": ArraySpec((16,), F32, "M"),
    "cursors": ArraySpec((8, 2), I32, "B_"),
    "step": ArraySpec((), I32, ""),
}
MESHES = {
    "1": Mesh(),
    "2": Mesh(shape=(2,)),
    "4": Mesh(axes=("x", "y"), shape=(2, 2), rules={"E": "x", "H": "y", "M": "y", "B": "x"}),
    "8": Mesh(axes=("x", "y"), shape=(4, 2), rules={"E": ["y", "x"], "V": "x", "B": ["x", "y"]}),
    "8 by width": Mesh(shape=(8,), rules={"M": "x", "B": "x"}),
}


def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(-9, 9, spec.shape).astype(spec.dtype)
        if spec.dtype == I32
        else rng.standard_normal(spec.shape).astype(spec.dtype)
        for name, spec in SPECS.items()
    }


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Returns the checkpoint of each mesh. One device writes the first, each next mesh reads the last."""
    root, folders, source = tmp_path_factory.mktemp("runs"), {}, None
    for name, mesh in MESHES.items():
        devices = runtime.start(mesh)
        writer = CheckpointWriter(root / name)
        if source is None:
            groups = {"all": devices.put(values(), SPECS)}
        else:
            groups = Checkpoints(source).restore({"all": devices.abstract(SPECS)}).groups
        writer.save(1, groups, {"all": {key: spec.letters for key, spec in SPECS.items()}}, {})
        writer.close()
        source = folders[name] = writer.folder
    return folders


@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_reads_the_same_values(written, mesh):
    """Along the chain 1, 2, 4, 8 devices, and back onto each of them from the last."""
    devices = runtime.start(MESHES[mesh])
    for folder in (written[mesh], written["8 by width"]):
        restored = Checkpoints(folder).restore({"all": devices.abstract(SPECS)})
        assert_equal(restored.groups, {"all": values()})
        for name, array in restored.groups["all"].items():
            assert array.sharding == devices.sharding(SPECS[name], name)


def test_the_checksums_do_not_depend_on_the_mesh(written):
    tables = [Checkpoints(folder).manifest(1).tensors["all"] for folder in written.values()]
    for name, spec in SPECS.items():
        expected = on_host(values()[name], spec.letters).sums
        for table in tables:
            np.testing.assert_array_equal(table[name].sums, expected, err_msg=name)
    assert tables[0]["experts"].sums.shape == (2, 8)


@pytest.mark.parametrize("mesh", MESHES)
def test_no_weight_is_gathered_to_compute_its_checksum(mesh):
    """Every collective moves checksums and counts only: fewer bytes than the smallest shard."""
    devices = runtime.start(MESHES[mesh])
    arrays = devices.put(values(), SPECS)
    text = checksums.program(arrays, {name: spec.letters for name, spec in SPECS.items()}).as_text()
    kinds = "|".join(COLLECTIVE_KINDS)
    results = re.findall(rf"= (.*?) (?:{kinds})(?:-start)?\(", text)
    elements = [
        int(np.prod([int(n) for n in shape.split(",") if n], dtype=int))
        for result in results
        for shape in re.findall(r"\w+\[([\d,]*)\]", result)
    ]
    # One checksum for each of 2 repeats and 8 experts is the largest result.
    assert all(size <= 16 for size in elements), results
    assert bool(results) == (len(devices.devices.devices.flat) > 1)


@pytest.mark.parametrize("on_host", [False, True])
def test_the_first_save_compiles_nothing_if_it_was_prepared(tmp_path, monkeypatch, on_host):
    """A save that compiles stops training for a second or more.

    The gate is whole on both devices. If they shared the work of writing it, a program would have to
    cut it.
    """
    if not on_host:
        monkeypatch.setattr(checksums, "_HOST_BYTES", 0)
    devices = runtime.start(MESHES["2"])
    specs = SPECS | {"gate": ArraySpec((640, 160), F32, "__")}
    letters = {"all": {name: spec.letters for name, spec in specs.items()}}
    writer = CheckpointWriter(tmp_path)
    checksums.prepare_checksums(flat({"all": devices.abstract(specs)}), flat(letters))
    groups = {"all": devices.put(values() | {"gate": np.ones((640, 160), np.float32)}, specs)}
    compiled: list[str] = []

    def listen(event: str, duration: float, **_: object) -> None:
        if "compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        writer.save(1, groups, letters, {})
        writer.close()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []
    assert Checkpoints(tmp_path).restore({"all": devices.abstract(specs)}).manifest.step == 1
