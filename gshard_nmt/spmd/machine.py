"""How many devices a mesh may have on this machine, or on the machines of several processes."""

import os
from pathlib import Path

from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.processes import Processes

CPU_FACTS = Path("/proc/cpuinfo")
_VIRTUAL_DEVICES = 8
"""A mesh of up to this number of CPU devices may have more devices than the process has cores.

The CPU devices of a process are virtual: a machine can start any number of them. But each has a copy of
every replicated weight, so the mesh of a pod would not fit into the memory of one machine.
"""


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
    runtime.choose_platform()
    if os.environ["JAX_PLATFORMS"] == "cpu" and not _has_started():
        cores = len(os.sched_getaffinity(0))
        most = processes.count * cores
        virtual = processes.count * max(cores, _VIRTUAL_DEVICES)
        words = _in_words(cores, "CPU core")
        if processes.count > 1:
            words = f"each of {processes.count} processes has {words}"
        else:
            words = f"this machine has {words}"
        return _in_order(wanted, processes.count, most, virtual), words
    import jax

    processes.join()
    total = len(jax.devices())
    words = _in_words(total, f"{jax.devices()[0].platform.upper()} device")
    if processes.count > 1:  # several processes must use all of their devices
        return [total], f"the {processes.count} processes have {words}"
    return _in_order(wanted, 1, total, total), f"this machine has {words}"


def multiplies_bfloat16() -> bool:
    """Returns whether the programs run on a CPU that has instructions for products in bfloat16."""
    runtime.choose_platform()
    if os.environ["JAX_PLATFORMS"] != "cpu":
        return False
    text = CPU_FACTS.read_text(encoding="utf-8") if CPU_FACTS.exists() else ""  # only Linux has it
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(text.split())


def _in_order(wanted: int, step: int, most: int, largest: int) -> list[int]:
    """Returns the multiples of `step` in the order in which to try them.

    Those up to `most` come before those up to `largest`, which come first only if one is wanted.
    """
    small = list(range(step, most + 1, step))
    large = list(range(most + step, largest + 1, step))
    first = [wanted] if wanted in (*small, *large) else []
    below = [count for count in small if count < wanted][::-1]
    above = [count for count in (*small, *large) if count > wanted]
    return [*first, *below, *above]


def _has_started() -> bool:
    """Returns whether jax has started its devices in this process. Then their number stays."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def _in_words(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
