"""Keeps the memory that a CPU program frees for the next run of the program.

XLA:CPU allocates its arrays anew in every run of a program. By default glibc gives large arrays back to
the system as soon as they are freed. The system then clears and maps each page again in the next step.
That takes a quarter of the CPU time of the demo's training step.

Threads keep heaps of their own. These cannot hold arrays of 64 MiB, so the system still clears the
temporary array of a large step each time. One heap for all threads would hold it, but threads then wait
for each other: the demo's step took 1.4 times as long, and its compilation 1.5 times.
"""

import ctypes
import os

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
"""The parameters of mallopt, from glibc's malloc.h."""

_OPTIONS = {
    _M_MMAP_THRESHOLD: 2**30,
    _M_TRIM_THRESHOLD: 2**31 - 1,
    # The heap grows by at least so much.
    _M_TOP_PAD: 2**26,
}
"""In bytes. mallopt takes 32 bits, so larger arrays still go back to the system."""


def keep_freed_memory() -> bool:
    """Asks the C library to keep freed memory.

    Returns:
      Whether it does. It does not if it is not glibc, or if the user has set its allocator by
      environment variables.
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(library.mallopt(option, value) for option, value in _OPTIONS.items())
