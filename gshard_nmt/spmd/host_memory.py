"""Keeps the memory that a CPU program frees for the next run of the program.

XLA:CPU allocates its arrays anew in every run of a program. By default glibc gives large arrays back to
the system as soon as they are freed. The system then clears and maps each page again in the next step.
That takes a quarter of the CPU time of the demo's training step.

By default glibc also gives each thread a heap of its own. Such a heap can only hold arrays below 64 MiB,
and the temporary arrays of a device are one array. So all threads must share the main heap.
"""

import ctypes
import os
from collections.abc import Mapping

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8
"""The parameters of mallopt, from glibc's malloc.h."""

_OPTIONS = {
    _M_MMAP_THRESHOLD: 2**30,
    _M_TRIM_THRESHOLD: 2**31 - 1,
    # The heap grows by at least so much.
    _M_TOP_PAD: 2**26,
}
"""In bytes. mallopt takes 32 bits, so larger arrays still go back to the system."""


_ONE_HEAP = {_M_ARENA_MAX: 1}


def use_one_heap() -> bool:
    """Asks the C library to serve all threads from one heap.

    Call it before the process has a second thread: glibc reads the number only once.

    Returns:
      Whether it does, as `keep_freed_memory`.
    """
    return _set(_ONE_HEAP)


def keep_freed_memory() -> bool:
    """Asks the C library to keep freed memory, in one heap for all threads.

    Returns:
      Whether it does. It does not if it is not glibc, or if the user has set its allocator by
      environment variables.
    """
    return _set(_ONE_HEAP | _OPTIONS)


def _set(options: Mapping[int, int]) -> bool:
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(library.mallopt(option, value) for option, value in options.items())
