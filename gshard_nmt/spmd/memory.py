"""The memory that a compiled program needs on a device, and the memory that is available.

Virtual CPU devices share the memory of their machine, or of the container that they run in.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gshard_nmt.errors import UserError
from gshard_nmt.quantities import size_text

_CGROUP_FILES = ("memory.max", "memory/memory.limit_in_bytes")
"""The memory limit of a container, under control groups of version 2 and of version 1."""


@dataclasses.dataclass(frozen=True)
class ProgramMemory:
    """The memory of a compiled program on one device, in bytes."""

    arguments: int  # its inputs, such as the training state and a batch
    temporaries: int  # activations, gradients and buffers of collectives
    outputs: int  # its results, without those that take over the memory of an input
    code: int  # the program itself

    @property
    def total(self) -> int:
        return self.arguments + self.temporaries + self.outputs + self.code

    def text(self) -> str:
        return (
            f"{size_text(self.total)} on each device ({size_text(self.arguments)} of arguments, "
            f"{size_text(self.temporaries)} of temporaries)"
        )


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a program, in the words of a message about its memory."""

    name: str  # what needs the memory
    advice: str  # a sentence that says what to change
    settings: tuple[str, ...]  # the settings that determine the memory


TRAINING = Work(
    "the training step",
    "Lower Data.rows, split the weights over more devices (Mesh.shape, Mesh.rules), or set Model.remat; "
    "gshard-inspect shows what takes the memory.",
    ("Data.rows", "Mesh.shape"),
)
DECODING = Work(
    "a batch of decoding",
    "Lower the beam (--beam), with --sample the number of samples (--nbest), or the rows (--gin "
    "'Decode.rows = ...'); or leave out the largest of Decode.source_lengths.",
    ("Decode.beam", "Decode.rows", "Decode.source_lengths"),
)


def of_program(executable: Any) -> ProgramMemory:
    """Returns the memory of jax's compiled object, by the compiler's own count."""
    stats = executable.memory_analysis()
    return ProgramMemory(
        stats.argument_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.output_size_in_bytes - stats.alias_size_in_bytes,
        stats.generated_code_size_in_bytes,
    )


def check_fits(
    needed: ProgramMemory, device: Any, local_devices: int, work: Work = TRAINING, held: int = 0
) -> None:
    """Checks that the devices of this process have the memory that a program needs.

    Args:
      needed: the memory of the program on one device.
      device: one of the devices, as jax describes it.
      local_devices: the number of devices of this process. CPU devices share one memory.
      held: the bytes of other arrays that stay on each device meanwhile.

    Raises:
      UserError: the program needs more memory than there is.
    """
    if device.platform == "cpu":
        available, total = machine_memory(), (needed.total + held) * local_devices
        owner = f"this machine, for {local_devices} CPU devices"
    else:
        stats = device.memory_stats() or {}
        available, total = stats.get("bytes_limit", 2**62), needed.total + held
        owner = "a device"
    if total > available:
        beside = f" beside {size_text(held)} of other arrays" if held else ""
        raise UserError(
            f"{work.name} needs {needed.text()}{beside}, {size_text(total)} in all; the memory of "
            f"{owner} is {size_text(available)}. {work.advice}",
            work.settings,
        )


def machine_memory(read: Callable[[Path], str] = Path.read_text) -> int:
    """Returns the memory in bytes that this process can have: the machine's, or its container's limit."""
    limits = [2**62]
    for name in _CGROUP_FILES:
        limits += _numbers(read, Path("/sys/fs/cgroup") / name)
    for line in _lines(read, Path("/proc/meminfo")):
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    return min(limits)


def free_machine_memory(read: Callable[[Path], str] = Path.read_text) -> int:
    """Returns the bytes of memory that no process of this machine uses now."""
    for line in _lines(read, Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, machine_memory(read))
    return machine_memory(read)


def _lines(read: Callable[[Path], str], path: Path) -> list[str]:
    try:
        return read(path).splitlines()
    except OSError:
        return []


def _numbers(read: Callable[[Path], str], path: Path) -> list[int]:
    """Returns the number in a file; nothing if there is no file, or "max", which means no limit."""
    return [int(line) for line in _lines(read, path)[:1] if line.strip().isdigit()]
