"""Counts the collectives of a compiled program by their kind and the mesh axes they run over.

XLA:CPU has no reduce-scatter. It writes an all-reduce of which each device keeps a slice, which is the
same (GSPMD section 4.2). Here both are counted as reduce-scatters.
"""

import collections
import re
from collections.abc import Iterator

from gshard_nmt.inspection.communication import axes_between, replica_group
from gshard_nmt.inspection.hlo import HloModule, Instruction, parse
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.program import COLLECTIVE_KINDS

_PAIRS = re.compile(r"source_target_pairs=\{\{(.*?)\}\}")
# These operations only rearrange a value, so we follow it to the operation that uses it.
_TRANSPARENT = ("bitcast", "copy", "reshape", "transpose", "convert", "get-tuple-element")

Counts = collections.Counter[tuple[str, str]]


def instructions_of(hlo: str) -> Iterator[Instruction]:
    """Yields all instructions of a program, also those inside fusions and loops."""
    yield from parse(hlo).by_name.values()


def collectives(hlo: str, mesh: Mesh) -> Counts:
    """Counts the arrays that each kind of collective moves, such as {("all-reduce", "x y"): 2}."""
    module = parse(hlo)
    counts: Counts = collections.Counter()
    for instruction in module.by_name.values():
        kind = instruction.opcode.removesuffix("-start")
        if kind not in COLLECTIVE_KINDS:
            continue
        axes = " ".join(axes_of(instruction.attributes, mesh))
        if kind == "all-reduce":
            for index in range(len(instruction.operands)):
                sliced = is_sliced(module, instruction, index)
                counts["reduce-scatter" if sliced else kind, axes] += 1
        else:
            counts[kind, axes] += 1
    return counts


def is_sliced(module: HloModule, reduced: Instruction, index: int) -> bool:
    """Returns whether each device keeps only a slice of a result; `index` is the element of a tuple."""
    uses = list(_uses(module, reduced, index if len(reduced.operands) > 1 else None))
    return bool(uses) and all(use == "dynamic-slice" for use in uses)


def _uses(module: HloModule, value: Instruction, index: int | None = None) -> Iterator[str]:
    """Yields the opcodes that use a value, through operations that rearrange it and inside fusions."""
    if value.is_root:
        yield "result"
    for user in module.users.get(value.name, ()):
        if user.opcode == "get-tuple-element" and index not in (None, user.index):
            continue
        if user.opcode in _TRANSPARENT:
            yield from _uses(module, user)
        elif user.opcode == "fusion":
            for inner in module.computations[user.calls[0]]:
                if inner.opcode == "parameter" and (
                    user.operands[inner.parameter_number] == value.name
                ):
                    yield from _uses(module, inner)
        else:
            yield user.opcode


def axes_of(attributes: str, mesh: Mesh) -> list[str]:
    """Returns the mesh axes along which the devices of a group of the collective differ."""
    groups = [replica_group(attributes, mesh.num_devices)]
    if pairs := _PAIRS.search(attributes):
        groups = [tuple(map(int, pair.split(","))) for pair in pairs[1].split("},{")]
    varying = {axis for group in groups for axis in axes_between(mesh, group)}
    return [axis for axis in mesh.axes if axis in varying]


def collective_of(record: dict, kind: str) -> dict:
    """Returns the only entry of a kind of collective in the JSON of gshard-inspect."""
    (collective,) = (c for c in record["collectives"] if c["kind"] == kind)
    return collective
