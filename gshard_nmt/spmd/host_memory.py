"""Keeps the memory that a CPU program frees, and lets the system map large arrays in large pages.

XLA:CPU allocates its arrays anew in every run of a program. By default glibc gives large arrays back to
the system as soon as they are freed. The system then clears and maps each page of 4 KiB again in the next
step. That takes a quarter of the CPU time of the demo's training step.

If a program has several devices, each of them runs in a thread, and each thread has a heap of its own,
which cannot hold an array of 64 MiB. The temporary array of a large step still comes from the system each
time. In pages of 2 MiB that is cheap, but glibc asks for them only if it was told so when the process
started. So a training program starts itself once more. One heap for all threads would need no new pages,
but threads then wait for each other: the demo's step took 1.4 times as long.
"""

import ctypes
import os
import sys
from pathlib import Path

_OPTIONS = {
    "mmap_threshold": (-3, 2**30),
    "trim_threshold": (-1, 2**31 - 1),
    # The heap grows by at least so much.
    "top_pad": (-2, 2**24),
}
"""By the name of glibc's tunable: the parameter of mallopt, from glibc's malloc.h, and the value in
bytes. mallopt takes 32 bits, so larger arrays still go back to the system."""

_TUNABLES = "GLIBC_TUNABLES"
_FIRST_GLIBC = (2, 35)
"""The first glibc with the tunable `hugetlb`."""
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def keep_freed_memory() -> bool:
    """Asks the C library to keep freed memory.

    Returns:
      Whether it does now. It is not asked if it is not glibc, or if environment variables have set its
      allocator.
    """
    if _allocator_is_set():
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(library.mallopt(option, value) for option, value in _OPTIONS.values())


def restart_with_large_pages() -> None:
    """Starts this process again, with the same command line, so that glibc asks for large pages.

    Call it before the program reads or writes anything. It does nothing if environment variables have set
    the allocator, so the second start goes on; and if large pages need not be asked for, are not
    allowed, or are unknown to the C library.
    """
    if _allocator_is_set() or not sys.executable or not _large_pages_on_request():
        return
    settings = {name: value for name, (_, value) in _OPTIONS.items()} | {"hugetlb": 1}
    os.environ[_TUNABLES] = ":".join(f"glibc.malloc.{k}={v}" for k, v in settings.items())
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _allocator_is_set() -> bool:
    return _TUNABLES in os.environ or any(name.startswith("MALLOC_") for name in os.environ)


def _large_pages_on_request() -> bool:
    """Returns whether the system gives large pages to programs that ask, and glibc can ask."""
    try:
        library, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        numbers = tuple(map(int, version.split(".")))
        return (
            numbers >= _FIRST_GLIBC
            and library == "glibc"
            and "[madvise]" in _LARGE_PAGES.read_text()
        )
    except (OSError, ValueError):
        return False
