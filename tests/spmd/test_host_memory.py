"""Freed memory stays with the process, unless the user has set the allocator."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, json, resource
from gshard_nmt.spmd import host_memory, mesh, runtime

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
    "alone": "host_memory.keep_freed_memory()",
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


def test_a_second_array_of_the_same_size_needs_no_new_page():
    before, after = faults_of("start")
    assert before > 1000  # otherwise the test could not fail
    assert after < 10


def test_the_environment_of_the_user_has_precedence():
    _, after = faults_of("alone", MALLOC_ARENA_MAX="2")
    assert after > 1000


RESTART = """
import ctypes, json, os, pathlib, resource, sys, threading
from gshard_nmt.spmd import host_memory

if "KERNEL" in os.environ:
    host_memory._KERNEL = pathlib.Path(os.environ["KERNEL"])
host_memory.restart_with_large_heaps()
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
