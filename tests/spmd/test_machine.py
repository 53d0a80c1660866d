"""What a machine has: its devices, its memory, and freed memory that stays with the process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.spmd import machine, runtime
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.processes import Processes

TWO = Processes("h:1", 2, 0)


@pytest.mark.parametrize(
    ("number", "wanted", "processes", "counts"),
    [
        (2, 2, Processes(), [2, 1, 3, 4, 5, 6, 7, 8]),
        (2, 8, Processes(), [8, 2, 1]),  # a small mesh may have more devices than cores
        (2, 9, Processes(), [2, 1]),
        (16, 64, Processes(), list(range(16, 0, -1))),
        (2, 1, TWO, [2, 4, 6, 8, 10, 12, 14, 16]),
        (1, 64, TWO, [2]),
    ],
)
def test_a_cpu_host_has_as_many_devices_as_cores(monkeypatch, number, wanted, processes, counts):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(number)))
    monkeypatch.setattr(machine, "_has_started", lambda: False)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert machine.device_counts(wanted, processes)[0] == counts


def test_devices_that_have_started_are_counted():
    """The tests have eight of them."""
    import jax

    assert len(jax.devices()) == 8
    counts, words = machine.device_counts(64, Processes())
    assert counts == [8, 7, 6, 5, 4, 3, 2, 1]
    assert words == "this machine has 8 CPU devices"
    joined = Processes("h:1", 2, 0)
    calls = []
    object.__setattr__(joined, "join", lambda: calls.append("join"))
    object.__setattr__(joined, "barrier", calls.append)
    assert machine.device_counts(64, joined)[0] == [8]
    assert calls == ["join", "devices"]


@pytest.mark.parametrize(
    ("text", "processes", "error", "told"),
    [
        ("Unable to initialize backend 'cuda': no driver.\nx", Processes(), UserError,
         r"cannot be started \(Unable to initialize backend 'cuda': no driver\)\. Mend the driver"),
        ("", Processes(), UserError, r"cannot be started \(AssertionError\)"),
        ("backend 'cpu': DEADLINE_EXCEEDED: y", Processes("h:1", 2, 0), TryAgain, "process is lost"),
        ("UNAVAILABLE: failed to connect to all", Processes("h:1", 2, 0), TryAgain, "is lost"),
        ("UNAVAILABLE: no TPU", Processes("h:1", 2, 0), UserError, "Mend the driver"),
    ],
)  # fmt: skip
def test_devices_that_cannot_be_started_are_no_traceback(monkeypatch, text, processes, error, told):
    def fail():
        raise RuntimeError(text) if text else AssertionError

    for name in ("join", "barrier"):
        object.__setattr__(processes, name, lambda *_: None)
    monkeypatch.setattr("jax.devices", fail)
    with pytest.raises(error, match=told):
        machine.devices(processes)
    monkeypatch.setattr(machine, "devices", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a program starts them so
        runtime.start(Mesh())


GIB = 2**30


@pytest.mark.parametrize(
    ("files", "total", "free"),
    [
        ({}, 16 * GIB, 8 * GIB),
        ({"memory.max": "max\n"}, 16 * GIB, 8 * GIB),
        ({"memory.max": f"{3 * GIB}\n"}, 3 * GIB, 3 * GIB),
        ({"job_1/memory.max": f"{2 * GIB}\n"}, 2 * GIB, 2 * GIB),
        ({"memory/memory.limit_in_bytes": f"{GIB}\n"}, GIB, GIB),
    ],
)
def test_the_limit_of_a_container_counts(tmp_path, monkeypatch, files, total, free):
    facts = "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n"
    for name, text in (files | {"meminfo": facts}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(machine, "MEMORY_FACTS", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CONTAINER_LIMITS", tmp_path)
    monkeypatch.setattr(machine, "GROUP_FACTS", tmp_path / "group")
    (tmp_path / "group").write_text("0::/job_1/step_0\n")
    assert (machine.machine_memory(), machine.free_machine_memory()) == (total, free)
    monkeypatch.setattr(machine, "MEMORY_FACTS", tmp_path / "none")
    assert machine.machine_memory() == (total if total < 16 * GIB else 2**62)


PROGRAM = """
import ctypes, json, resource
from gshard_nmt.spmd import machine, mesh, runtime

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
SIZE = 100 << 20

def faults():
    began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory = ctypes.c_void_p(library.malloc(ctypes.c_size_t(SIZE)))
    ctypes.memset(memory, 1, SIZE)
    library.free(memory)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began

before = [faults() for _ in range(2)]
START
after = [faults() for _ in range(3)]
print(json.dumps([before[-1], after[-1]]))
"""

CALLS = {
    "alone": "machine.keep_freed_memory()",
    "start": "runtime.start(mesh.Mesh(axes=('x',), shape=(1,)))",
}


def run_with(program, given="", **environment):
    """Runs a program that prints JSON, in an environment that says nothing else about the allocator."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    inherited.pop("GLIBC_TUNABLES", None)
    answer = subprocess.run(
        [sys.executable, "-c", program, "a word"],
        input=given,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return json.loads(answer.stdout)


def faults_of(call, **environment):
    return run_with(PROGRAM.replace("START", CALLS[call]), **environment)


@pytest.mark.parametrize("call", CALLS)
def test_a_second_array_of_the_same_size_needs_no_new_page(call):
    before, after = faults_of(call)
    assert before > 1000  # otherwise the test could not fail
    assert after < 10


def test_the_environment_of_the_user_has_precedence():
    _, after = faults_of("alone", MALLOC_ARENA_MAX="2")
    assert after > 1000


RESTART = """
import ctypes, json, os, pathlib, resource, sys, threading
from gshard_nmt.spmd import machine

if "KERNEL" in os.environ:
    machine._KERNEL = pathlib.Path(os.environ["KERNEL"])
machine.restart_with_large_heaps()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
SIZE = 100 << 20

def touch():
    memory = ctypes.c_void_p(library.malloc(ctypes.c_size_t(SIZE)))
    ctypes.memset(memory, 1, SIZE)
    library.free(memory)

def touch_twice():
    library.free(ctypes.c_void_p(library.malloc(1000)))  # the thread has a heap now
    touch()
    began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    touch()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began)

faults = []
thread = threading.Thread(target=touch_twice)
thread.start(), thread.join()
print(json.dumps([os.environ.get("GLIBC_TUNABLES", ""), sys.argv, sys.stdin.read(), *faults]))
"""


def kernel(folder: Path, reserved: str | None, transparent: str) -> str:
    """Writes the files of a kernel that tell of large pages."""
    for name, text in (
        ("hugepages/hugepages-1048576kB/nr_hugepages", reserved),
        ("transparent_hugepage/enabled", transparent),
    ):
        if text is not None:
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(f"{text}\n")
    return str(folder)


@pytest.mark.parametrize(
    ("reserved", "transparent", "asked"),
    [
        ("0", "always [madvise] never", f"{2**30}"),
        ("0", "[always] madvise never", f"{2**30}"),
        ("4", "always [madvise] never", "1"),
        (None, "always [madvise] never", "1"),
        (None, "[always] madvise never", ""),
    ],
)
def test_a_program_starts_again_with_what_the_system_has(tmp_path, reserved, transparent, asked):
    folder = kernel(tmp_path, reserved, transparent)
    tunables, words, read, _ = run_with(RESTART, "a line", KERNEL=folder)
    assert (words, read) == (["-c", "a word"], "a line")
    assert tunables.rpartition("glibc.malloc.hugetlb=")[2] == asked


def test_a_program_whose_allocator_is_set_is_not_started_again(tmp_path):
    folder = kernel(tmp_path, "0", "always [madvise] never")
    assert run_with(RESTART, KERNEL=folder, MALLOC_ARENA_MAX="2")[0] == ""
    given = "glibc.malloc.arena_max=2"
    assert run_with(RESTART, KERNEL=folder, GLIBC_TUNABLES=given)[0] == given
    assert run_with(RESTART, KERNEL=str(tmp_path / "missing"))[0] == ""
