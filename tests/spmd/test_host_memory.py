"""Freed memory stays with the process, unless the user has set the allocator."""

import json
import os
import subprocess
import sys

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


def faults_of(call, **environment):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    inherited.pop("GLIBC_TUNABLES", None)
    program = PROGRAM.replace("START", CALLS[call])
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(answer.stdout)


@pytest.mark.parametrize("call", CALLS)
def test_a_second_array_of_the_same_size_needs_no_new_page(call):
    before, after = faults_of(call)
    assert before > 1000  # otherwise the test could not fail
    assert after < 10


def test_the_environment_of_the_user_has_precedence():
    _, after = faults_of("alone", MALLOC_ARENA_MAX="2")
    assert after > 1000


def test_another_c_library_is_left_alone(monkeypatch):
    from gshard_nmt.spmd import host_memory

    for name in list(os.environ):
        if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES":
            monkeypatch.delenv(name)
    monkeypatch.setattr(host_memory.ctypes, "CDLL", lambda _: object())
    assert not host_memory.keep_freed_memory()
