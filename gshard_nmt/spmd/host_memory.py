"""Keeps the memory that a CPU program frees, for its next run.

XLA:CPU allocates its arrays anew in every run of a program. By default glibc gives large arrays back to
the system as soon as they are freed. The system then clears and maps each page of 4 KiB again in the next
step. That takes a quarter of the CPU time of the demo's training step.

If a program has several devices, each of them runs in a thread, and each thread has a heap of its own.
A heap cannot hold more than 64 MiB, so the temporary array of a large step still comes from the system
each time. glibc has larger heaps only if it was told so when the process started, so a training program
starts itself once more. One heap for all threads would hold the array too, but threads then wait for each
other: the demo's step took 1.4 times as long.
"""

import ctypes
import os
import resource
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
_KERNEL = Path("/sys/kernel/mm")
_LARGE_PAGE = 2**30


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


def restart_with_large_heaps() -> None:
    """Starts this process again, with the same command line, so that glibc has large heaps.

    Call it before the program reads or writes anything. It does nothing if environment variables have set
    the allocator, so the second start goes on; and if the system or the C library cannot do it.
    """
    pages = _pages()
    if _allocator_is_set() or not pages or not sys.executable:
        return
    settings = {name: value for name, (_, value) in _OPTIONS.items()} | {"hugetlb": pages}
    os.environ[_TUNABLES] = ":".join(f"glibc.malloc.{k}={v}" for k, v in settings.items())
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _allocator_is_set() -> bool:
    return _TUNABLES in os.environ or any(name.startswith("MALLOC_") for name in os.environ)


def _pages() -> int:
    """Returns the value of glibc's tunable `hugetlb`; 0 leaves it alone.

    If it is the size of a page that the processor has, a heap holds four such pages (`heap_max_size` in
    glibc's malloc/arena.c). None of these pages is reserved here, so the heap has usual ones. If the
    processor has none of 1 GiB, 1 asks for transparent pages of 2 MiB: the system still maps the array in
    each step, but in fewer pieces.
    """
    try:
        library, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
        if library != "glibc" or tuple(map(int, version.split("."))) < _FIRST_GLIBC:
            return 0
        reserved = _KERNEL / "hugepages" / f"hugepages-{_LARGE_PAGE // 1024}kB" / "nr_hugepages"
        # The addresses of a heap count, also those that it does not use.
        has_limit = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        if not has_limit and reserved.exists() and reserved.read_text().strip() == "0":
            return _LARGE_PAGE
        return int("[madvise]" in (_KERNEL / "transparent_hugepage" / "enabled").read_text())
    except (OSError, ValueError):
        return 0
