"""Freed memory stays with the process, unless the user has set the allocator."""

import json
import os
import subprocess
import sys

import pytest

from gshard_nmt.spmd import host_memory

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


@pytest.mark.parametrize("call", CALLS)
def test_a_second_array_of_the_same_size_needs_no_new_page(call):
    before, after = faults_of(call)
    assert before > 1000  # otherwise the test could not fail
    assert after < 10


def test_the_environment_of_the_user_has_precedence():
    _, after = faults_of("alone", MALLOC_ARENA_MAX="2")
    assert after > 1000


def test_another_c_library_is_left_alone(monkeypatch):
    for name in list(os.environ):
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)
    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda _: object())
    assert not host_memory.keep_freed_memory()


RESTART = """
import ctypes, json, os, pathlib, resource, sys, threading
from gshard_nmt.spmd import host_memory

host_memory._LARGE_PAGES = pathlib.Path(os.environ["PAGES"])
host_memory.restart_with_large_pages()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
SIZE = 100 << 20

def touch():
    library.free(ctypes.c_void_p(library.malloc(1000)))  # the thread has a heap now
    memory = ctypes.c_void_p(library.malloc(ctypes.c_size_t(SIZE)))
    ctypes.memset(memory, 1, SIZE)
    library.free(memory)

began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = threading.Thread(target=touch)
thread.start(), thread.join()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - began
print(json.dumps([os.environ.get("GLIBC_TUNABLES", ""), sys.argv, sys.stdin.read(), faults]))
"""


@pytest.mark.parametrize("allowed", ["always [madvise] never", "[always] madvise never"])
def test_a_program_asks_for_large_pages_if_the_system_wants_to_be_asked(tmp_path, allowed):
    (tmp_path / "enabled").write_text(f"{allowed}\n")
    tunables, words, read, faults = run_with(RESTART, "a line", PAGES=str(tmp_path / "enabled"))
    assert (words, read) == (["-c", "a word"], "a line")
    asked = "[madvise]" in allowed
    assert tunables.endswith(":glibc.malloc.hugetlb=1") == asked
    gives = host_memory._LARGE_PAGES.read_text() if host_memory._LARGE_PAGES.exists() else "[never]"
    has_large_pages = "[always]" in gives or (asked and "[madvise]" in gives)
    # 100 MiB are 25,600 pages of 4 KiB.
    assert (faults < 2_000) == has_large_pages


def test_a_program_whose_allocator_is_set_is_not_started_again(tmp_path):
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    pages = str(tmp_path / "enabled")
    assert run_with(RESTART, PAGES=pages, MALLOC_ARENA_MAX="2")[0] == ""
    given = "glibc.malloc.arena_max=2"
    assert run_with(RESTART, PAGES=pages, GLIBC_TUNABLES=given)[0] == given
    assert run_with(RESTART, PAGES=str(tmp_path / "missing"))[0] == ""
