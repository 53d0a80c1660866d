"""What this machine has: devices, memory, and a C library that may keep freed memory.

This module is imported by every program, so it imports jax only inside functions.

**Freed memory.** XLA:CPU allocates its arrays anew in every run of a program. By default glibc gives
large arrays back to the system as soon as they are freed. The system then clears and maps each page of
4 KiB again in the next step. That takes a quarter of the CPU time of the demo's training step.

If a program has several devices, each of them runs in a thread, and each thread has a heap of its own.
A heap cannot hold more than 64 MiB, so the temporary array of a large step still comes from the system
each time. glibc has larger heaps only if it was told so when the process started, so a training program
starts itself once more. One heap for all threads would hold the array too, but threads then wait for each
other: the demo's step took 1.4 times as long.
"""

import ctypes
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.spmd.processes import Processes

CPU_FACTS = Path("/proc/cpuinfo")
MEMORY_FACTS = Path("/proc/meminfo")
CONTAINER_LIMITS = Path("/sys/fs/cgroup")
GROUP_FACTS = Path("/proc/self/cgroup")

_ACCELERATORS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/accel0", "/dev/vfio/0")
_VIRTUAL_DEVICES = 8
"""A mesh of up to this number of CPU devices may have more devices than the process has cores.

The CPU devices of a process are virtual: a machine can start any number of them. But each has a copy of
every replicated weight, so the mesh of a pod would not fit into the memory of one machine.
"""

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


def choose_platform() -> None:
    """Sets jax's platform to the CPU if no accelerator is visible. Call it before anything uses jax.

    A plugin that finds no accelerator is slow and logs errors.
    """
    has_accelerator = any(os.path.exists(path) for path in _ACCELERATORS)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("JAX_PLATFORMS", "" if has_accelerator else "cpu")


def device_counts(wanted: int, processes: Processes) -> tuple[list[int], str]:
    """Returns the numbers of devices that a mesh may have, in the order in which to try them.

    On accelerators it starts jax, because only jax knows how many there are.

    Args:
      wanted: the preferred number of devices. If it is possible, it comes first. Then come smaller
        numbers, the largest first, and then larger ones.
      processes: the processes of the mesh. Each has the same number of devices.

    Returns:
      The numbers, and the devices of this machine in words.
    """
    choose_platform()
    if os.environ["JAX_PLATFORMS"] == "cpu" and not _has_started():
        cores = len(os.sched_getaffinity(0))
        most = processes.count * cores
        virtual = processes.count * max(cores, _VIRTUAL_DEVICES)
        owner = f"each of {processes.count} processes" if processes.count > 1 else "this machine"
        words = f"{owner} has {_in_words(cores, 'CPU core')}"
        return _in_order(wanted, processes.count, most, virtual), words
    found = devices(processes)
    total = len(found)
    words = _in_words(total, f"{found[0].platform.upper()} device")
    if processes.count > 1:  # several processes must use all of their devices
        return [total], f"the {processes.count} processes have {words}"
    return _in_order(wanted, 1, total, total), f"this machine has {words}"


def devices(processes: Processes) -> list[Any]:
    """Starts jax's devices, in all processes together, and returns them.

    Raises:
      UserError: jax cannot use the accelerator.
      TryAgain: another process is lost.
    """
    import jax

    processes.join()
    # They exchange what they have, and give up on a process that comes minutes later.
    processes.barrier("devices")
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:
        what = str(error).partition("\n")[0][:300].rstrip(".") or type(error).__name__
        if processes.count > 1 and re.search(
            "DEADLINE_EXCEEDED|UNAVAILABLE.*(connect|closed)", what
        ):
            raise TryAgain(
                f"another process is lost ({what}). {processes.job.start_again}"
            ) from None
        raise UserError(
            f"the devices cannot be started ({what}). Mend the driver or its package for jax, end the "
            "program that holds the devices, or use CPU devices with JAX_PLATFORMS=cpu."
        ) from None


def multiplies_bfloat16() -> bool:
    """Returns whether the programs run on a CPU that has instructions for products in bfloat16."""
    choose_platform()
    if os.environ["JAX_PLATFORMS"] != "cpu":
        return False
    words = " ".join(_lines(CPU_FACTS)).split()  # only Linux has the file
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(words)


def _in_order(wanted: int, step: int, most: int, largest: int) -> list[int]:
    """Returns the multiples of `step` in the order in which to try them.

    Those up to `most` come before those up to `largest`, which come first only if one is wanted.
    """
    counts = [n for n in range(step, largest + 1, step) if n <= most or n >= wanted]
    return sorted(counts, key=lambda n: (n > wanted, abs(n - wanted)))


def _has_started() -> bool:
    """Returns whether jax has started its devices in this process. Then their number stays."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def _in_words(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def machine_memory() -> int:
    """Returns the memory in bytes that this process can have: the machine's, or its container's limit."""
    limits = [_memory_fact("MemTotal:")]
    # The limits of control groups of version 2, also of those around this process (Slurm, systemd), and
    # of version 1. "max" means no limit.
    own = next((line[4:] for line in _lines(GROUP_FACTS) if line.startswith("0::/")), "")
    files = [group / "memory.max" for group in (CONTAINER_LIMITS / own / "x").parents]
    for file in (*files, CONTAINER_LIMITS / "memory/memory.limit_in_bytes"):
        limits += [int(line) for line in _lines(file)[:1] if line.isdigit()]
    return min(limits)


def free_machine_memory() -> int:
    """Returns the bytes of memory that no process of this machine uses now."""
    return min(_memory_fact("MemAvailable:"), machine_memory())


def _memory_fact(name: str) -> int:
    lines = (line.split() for line in _lines(MEMORY_FACTS) if line.startswith(name))
    return next((int(line[1]) * 1024 for line in lines), 2**62)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


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
