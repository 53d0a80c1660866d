"""The runtime: arrays on devices, compiled programs, and the cache of lowered functions."""

import dataclasses
import json
import types

import jax
import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.errors import UserError
from gshard_nmt.spmd import program_cache, runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.processes import Processes

F32 = np.dtype(np.float32)
SPEC = ArraySpec((4,), F32, "B")
PAIR = Mesh(("x",), (2,), rules={"B": "x"})


class Lowering:
    """Lowers x -> factor * x, and counts its calls."""

    def __init__(self, factor: float) -> None:
        self.factor, self.count = factor, 0

    def __call__(self):
        self.count += 1
        return lower(
            lambda a: [{"y": a["x"] * tf.constant(self.factor)}], [{"x": SPEC}], [{}], PAIR
        )


@pytest.fixture
def compiled(tmp_path):
    """A function that compiles with a cache; returns the result and whether it was lowered."""
    before = jax.config.jax_compilation_cache_dir

    def compile_with(lowering: Lowering, key: str = "key", mesh: Mesh = PAIR) -> tuple[float, bool]:
        count = lowering.count
        devices = runtime.start(mesh, tmp_path)
        program = devices.compile(key, lowering)
        (result,) = program(devices.put({"x": np.ones(4, np.float32)}, {"x": SPEC}))
        return float(np.asarray(result["y"])[0]), lowering.count > count

    yield compile_with
    jax.config.update("jax_compilation_cache_dir", before)


def test_a_function_is_lowered_once_for_a_key_a_mesh_and_a_kind_of_device(compiled, monkeypatch):
    assert compiled(Lowering(2.0)) == (2.0, True)
    assert compiled(Lowering(3.0)) == (2.0, False)
    assert compiled(Lowering(3.0), key="other") == (3.0, True)
    assert compiled(Lowering(4.0), mesh=Mesh(("x",), (2,), rules={})) == (4.0, True)
    monkeypatch.setattr(runtime.Runtime, "is_cpu", False)
    assert compiled(Lowering(5.0)) == (5.0, True)


def test_a_function_lowered_by_other_code_is_not_used(compiled, monkeypatch):
    compiled(Lowering(2.0))
    monkeypatch.setattr(runtime, "source_fingerprint", lambda: "changed")
    assert compiled(Lowering(3.0)) == (3.0, True)


def test_a_function_lowered_by_another_tensorflow_is_lowered_again(compiled, tmp_path, monkeypatch):
    compiled(Lowering(2.0))
    for file in tmp_path.glob("*.jaxexport"):
        line, _, program = file.read_bytes().partition(b"\n")
        line = json.dumps(json.loads(line) | {"tensorflow": "0.1"}).encode()
        file.write_bytes(line + b"\n" + program)
    monkeypatch.setattr(program_cache, "_tensorflow_version", lambda: None)
    assert compiled(Lowering(3.0)) == (2.0, False)
    monkeypatch.undo()
    assert compiled(Lowering(3.0)) == (3.0, True)


DAMAGES = {
    "emptied": lambda path: path.write_bytes(b""),
    "flipped": lambda path: flip(path),
    "another": lambda path: path.write_bytes(b'{"inputs": 5}'),
}


def flip(path) -> None:
    """Flips a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[-len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_lowered_again_once(compiled, tmp_path, damage):
    compiled(Lowering(2.0))
    (path,) = tmp_path.glob("*.jaxexport")
    DAMAGES[damage](path)
    lowering = Lowering(2.0)
    assert compiled(lowering) == (2.0, True)
    assert compiled(lowering) == (2.0, False)


def test_a_cache_that_cannot_be_written_only_costs_time(compiled, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(program_cache.files, "write", fail)
    lowering = Lowering(2.0)
    assert compiled(lowering) == (2.0, True)
    assert compiled(lowering) == (2.0, True)


@pytest.mark.parametrize("donate", [(), (0,)])
def test_only_donated_arguments_are_reused(donate):
    devices = runtime.start(PAIR)
    program = devices.compile(
        "twice",
        lambda: lower(lambda a: [{"x": a["x"] * 2.0}], [{"x": SPEC}], [{"x": "B"}], PAIR),
        donate,
    )
    placed = devices.put({"x": np.ones(4, np.float32)}, {"x": SPEC})
    (result,) = program(placed)
    assert np.asarray(result["x"]).tolist() == [2, 2, 2, 2]
    assert placed["x"].is_deleted() == bool(donate)


def test_a_mesh_that_is_too_large_is_refused():
    runtime.start(PAIR)  # from here on the number of CPU devices is fixed
    with pytest.raises(UserError, match=r"the mesh {'x': 64} needs 64 devices; there are \d+"):
        runtime.start(Mesh(("x",), (64,)))


def test_several_processes_must_use_all_their_devices(monkeypatch):
    """The first two devices belong to process 0, so process 1 would have no rows."""
    for name in ("join", "barrier"):
        monkeypatch.setattr(Processes, name, lambda *_: None)
    monkeypatch.setattr(runtime, "request_cpu_devices", lambda count, exactly: None)
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(platform="cpu")] * 4)
    with pytest.raises(UserError) as raised:
        runtime.start(PAIR, processes=Processes("h:1", 2, 1))
    assert str(raised.value) == (
        "the mesh {'x': 2} has 2 devices, but the 2 processes have 4 (cpu); several processes must use "
        "all of their devices. Set Mesh.shape to 4 devices, or start fewer processes."
    )


ORDERS = {
    "in order": (Mesh(("x",), (4,), rules={"B": "x"}), [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "permuted": (
        Mesh(("x",), (4,), rules={"B": "x"}, device_order=(0, 2, 1, 3)),
        [[0, 1, 4, 5], [2, 3, 6, 7]],
    ),
    "rows split over the axis inside a process": (
        Mesh(("y", "x"), (2, 2), rules={"B": "x"}),
        [[*range(8)], [*range(8)]],
    ),
    "whole rows in each process": (
        Mesh(("x", "y"), (1, 4), rules={"B": "x"}),
        [[*range(8)], [*range(8)]],
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_a_process_places_exactly_the_rows_of_its_devices(name):
    """Devices 0 and 1 belong to the first of two processes, 2 and 3 to the second."""
    mesh, expected = ORDERS[name]
    spec = ArraySpec((8, 3), F32, "BL")
    indices = runtime.start(mesh).sharding(spec).devices_indices_map(spec.shape)
    array = np.arange(24, dtype=np.float32).reshape(8, 3)
    for process, rows in enumerate(expected):
        own = {device: i for device, i in indices.items() if device.id // 2 == process}
        assert runtime.rows_of(own.values(), 8).tolist() == rows
        for index in own.values():
            part = runtime.part_of(array[rows], index, np.array(rows))
            np.testing.assert_array_equal(part, array[index])


@dataclasses.dataclass(frozen=True)
class Core:
    """A core of a TPU, as jax describes it."""

    coords: tuple[int, int, int]
    core_on_chip: int
    platform: str = "tpu"


def test_an_order_counts_tpu_devices_by_their_coordinates(monkeypatch):
    """jax lists them process by process; here a process has 2 x 2 chips of a slice of 4 x 2 chips."""
    cores = [
        Core((x + 2 * process, y, 0), core)
        for process in (0, 1)
        for y in (0, 1)
        for x in (0, 1)
        for core in (0, 1)
    ]
    by_number = [cores[i] for i in (*range(4), *range(8, 12), *range(4, 8), *range(12, 16))]
    assert runtime.by_coordinates(cores) == by_number
    assert [core.coords[:2] for core in by_number[::2]][:5] == [
        *((0, 0), (1, 0), (2, 0), (3, 0), (0, 1))
    ]
    monkeypatch.setattr(jax.sharding, "Mesh", lambda devices, axes: devices)
    mesh = Mesh(("x", "y"), (2, 8), rules={})
    assert runtime.arranged(cores, mesh).ravel().tolist() == cores
    ordered = runtime.arranged(cores, dataclasses.replace(mesh, device_order="[16]"))
    assert ordered.ravel().tolist() == by_number
    assert runtime.by_coordinates([Core((), 1, "cpu"), Core((), 0, "cpu")])[0].core_on_chip == 1


class OneOfTwo(Processes):
    """One of two processes, without the other one. Process 1 hears what process 0 said before."""

    said: list[bytes] = []  # noqa: RUF012

    def broadcast(self, content: bytes = b"") -> bytes:
        if self.is_first:
            self.said.append(content)
        return self.said[-1]


def test_process_0_sends_a_lowered_function_to_the_others(tmp_path):
    started = runtime.start(PAIR)

    def lowered():
        return lower(lambda a: [{"x": a["x"] * 3.0}], [{"x": SPEC}], [{"x": "B"}], PAIR)

    for index, lowers in enumerate((lowered, pytest.fail)):
        processes, cache = OneOfTwo("h:1", 2, index), tmp_path / str(index)
        cache.mkdir()
        devices = runtime.Runtime(PAIR, started.devices, cache, processes)
        exported, signature = devices._exported("thrice", lowers)
        assert signature == lowered().signature
        (result,) = jax.jit(exported.call)(started.put({"x": np.ones(4, F32)}, {"x": SPEC})["x"])
        assert np.asarray(result).tolist() == [3, 3, 3, 3]
    assert [len(list(folder.glob("*.jaxexport"))) for folder in sorted(tmp_path.iterdir())] == [
        1,
        0,
    ]
