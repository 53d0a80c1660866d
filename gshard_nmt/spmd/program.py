"""A compiled program: its call, its collectives and its memory, and whether the memory is there."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from gshard_nmt.errors import UserError
from gshard_nmt.quantities import size_text
from gshard_nmt.spmd import machine
from gshard_nmt.spmd.lowering import Signature, unflatten

COLLECTIVE_KINDS = (
    "all-to-all", "all-reduce", "all-gather", "reduce-scatter", "collective-permute",
)  # fmt: skip
"""The kinds of collectives that a program has, as XLA writes them."""


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


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program. Call it with one dict of arrays for each group of inputs."""

    signature: Signature
    executable: Any  # jax's compiled object
    lower_seconds: float  # Seconds to lower the function, or to read it from the cache
    # Seconds to compile the program with XLA, or to read it from XLA's cache
    compile_seconds: float

    def __call__(self, *groups: Mapping[str, object]) -> list[dict]:
        """Runs the program; returns one dict of sharded arrays for each group of outputs."""
        arguments = [group[name] for group in groups for name in sorted(group)]
        return unflatten(self.signature.outputs, self.executable(*arguments))

    def collectives(self) -> dict[str, int]:
        """Counts the collectives in its text. An asynchronous one counts once."""
        names = "|".join(COLLECTIVE_KINDS)
        kinds = re.findall(
            rf"= (?:[^=\n]|/\*index=)*\b({names})(?:-start)?\(", self.executable.as_text()
        )
        return {kind: kinds.count(kind) for kind in COLLECTIVE_KINDS}

    def memory(self) -> ProgramMemory:
        """Returns its memory by the compiler's own count."""
        stats = self.executable.memory_analysis()
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
        available, total = machine.machine_memory(), (needed.total + held) * local_devices
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
