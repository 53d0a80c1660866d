"""What a compiled program communicates: each collective by its kind and the mesh axes it runs over.

XLA:CPU has no reduce-scatter of its own and writes an all-reduce of which each device keeps a slice,
which is what a ReduceScatter is (GSPMD section 4.2); here both are called reduce-scatter.
"""

import collections
import dataclasses
import re

import numpy as np

from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.runtime import COLLECTIVES

_INSTRUCTION = re.compile(r"\s*(ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_COMPUTATION = re.compile(r"(ENTRY )?%([\w.\-]+) \(.*\{$")
_LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\]T\(([\d,]+)\)\))?\s*\{([^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{\{(.*?)\}\}")
# Through these a value keeps its elements, or most of them: what follows tells what it is used for.
_TRANSPARENT = ("bitcast", "copy", "reshape", "transpose", "convert", "get-tuple-element")


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    text: str
    is_root: bool


Computation = dict[str, Instruction]
Counts = collections.Counter[tuple[str, str]]


def collectives(hlo: str, mesh: Mesh) -> Counts:
    """How many arrays each kind of collective moves along which axes: {("all-reduce", "x y"): 2}."""
    computations = parse(hlo)
    counts: Counts = collections.Counter()
    for computation in computations.values():
        for one in computation.values():
            kind = one.opcode.removesuffix("-start")
            if kind not in COLLECTIVES:
                continue
            axes = " ".join(axes_of(one.text, mesh))
            if kind == "all-reduce":
                for index in range(len(one.operands)):
                    sliced = is_sliced(computations, computation, one, index)
                    counts["reduce-scatter" if sliced else kind, axes] += 1
            else:
                counts[kind, axes] += 1
    return counts


def parse(hlo: str) -> dict[str, Computation]:
    """The computations of a program by name, each its instructions by name."""
    computations: dict[str, Computation] = {}
    current: Computation = {}
    for line in hlo.splitlines():
        if head := _COMPUTATION.match(line):
            current = computations.setdefault(head[2], {})
        elif found := _INSTRUCTION.match(line):
            root, name, shape, opcode, rest = found.groups()
            operands = re.findall(r"%([\w.\-]+)", rest[: _closing(rest)])
            current[name] = Instruction(name, shape, opcode, tuple(operands), line, bool(root))
    return computations


def _closing(text: str) -> int:
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place
    return len(text)


def is_sliced(
    computations: dict[str, Computation], computation: Computation, one: Instruction, index: int
) -> bool:
    """Whether each device keeps only its slice of a result; of a tuple, of element `index`."""
    uses = list(
        _uses(computations, computation, one.name, index if len(one.operands) > 1 else None)
    )
    return bool(uses) and all(use == "dynamic-slice" for use in uses)


def _uses(computations, computation, name, index=None):
    """The opcodes that use a value, looking through what only rearranges it and into fusions."""
    if computation[name].is_root:
        yield "result"
    for user in computation.values():
        if name not in user.operands:
            continue
        if (
            user.opcode == "get-tuple-element"
            and f"index={index}" not in user.text
            and index is not None
        ):
            continue
        if user.opcode in _TRANSPARENT:
            yield from _uses(computations, computation, user.name)
        elif user.opcode == "fusion":
            inner = computations[re.search(r"calls=%([\w.\-]+)", user.text)[1]]
            for place, operand in enumerate(user.operands):
                if operand == name:
                    parameter = next(i for i in inner.values() if f" parameter({place})" in i.text)
                    yield from _uses(computations, inner, parameter.name)
        else:
            yield user.opcode


def axes_of(text: str, mesh: Mesh) -> list[str]:
    """The mesh axes along which the devices of a collective's groups differ."""
    if pairs := _PAIRS.search(text):
        groups = [[int(n) for n in pair.split(",")] for pair in pairs[1].split("},{")]
    else:
        groups = [_first_group(text, mesh.num_devices)]
    places = [np.array(np.unravel_index(group, tuple(mesh.shape))) for group in groups]
    varies = np.any([(p != p[:, :1]).any(axis=1) for p in places], axis=0)
    return [axis for axis, yes in zip(mesh.axes, varies, strict=True) if yes]


def _first_group(text: str, devices: int) -> list[int]:
    """Of the notations {{0,1},{2,3}}, [2,2]<=[4]T(0), and mesh['a'=2,'b'=2] {'b'}."""
    if named := _NAMED.search(text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", named[1])}
        grid = _permuted(devices, named[2], named[3]).reshape(list(sizes.values()))
        return (
            grid[tuple(slice(None) if f"'{n}'" in named[4] else 0 for n in sizes)].ravel().tolist()
        )
    if iota := _IOTA.search(text):
        return _permuted(devices, iota[3], iota[4])[: int(iota[2])].tolist()
    return [int(n) for n in _LISTED.search(text)[1].split(",")]


def _permuted(devices: int, sizes: str | None, order: str | None) -> np.ndarray:
    grid = np.arange(devices).reshape([int(n) for n in (sizes or str(devices)).split(",")])
    return (grid.transpose([int(n) for n in order.split(",")]) if order else grid).ravel()
