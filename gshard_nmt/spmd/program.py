"""A compiled program: its call, its collectives and its memory."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from gshard_nmt.spmd.lowering import Signature, unflatten
from gshard_nmt.spmd.memory import ProgramMemory, of_program

COLLECTIVE_KINDS = (
    "all-to-all",
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
)
"""The kinds of collectives that a program has, as XLA writes them."""


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
        return count_collectives(self.executable.as_text())

    def memory(self) -> ProgramMemory:
        return of_program(self.executable)


def count_collectives(hlo: str) -> dict[str, int]:
    """Counts the collectives in the text of a compiled program. An asynchronous one counts once."""
    kinds = re.findall(rf"= [^=\n]*\b({'|'.join(COLLECTIVE_KINDS)})(?:-start)?\(", hlo)
    return {kind: kinds.count(kind) for kind in COLLECTIVE_KINDS}
