"""Arithmetic and memory traffic of a compiled program, and a roofline by kind of work.

GShard section 5.2, Figure 8: each operation takes at least as long as the slowest of its arithmetic at
the chip's peak, its bytes at the bandwidth of the memory, and its messages at that of the links.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence

from gshard_nmt.inspection.hlo import Instruction, Program
from gshard_nmt.inspection.origin import UNKNOWN, Origin, origin_of
from gshard_nmt.spmd.chips import Chip

_NO_WORK = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all")
_PRODUCTS = ("dot", "convolution")
_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


@dataclasses.dataclass(frozen=True)
class Work:
    """What one instruction, or several, cost in one step.

    Attributes:
      flops: multiplications and additions of matrix products and convolutions.
      bytes_accessed: read from and written to the device's memory.
      seconds: the compiler's estimate, else the roofline; None without a chip.
      roofline_seconds: with everything at its peak; None without a chip.
    """

    flops: float = 0.0
    bytes_accessed: float = 0.0
    seconds: float = 0.0
    roofline_seconds: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(a + b for a, b in zip(self._values(), other._values(), strict=True)))

    def times(self, n: int) -> "Work":
        """The same, n times."""
        return Work(*(n * value for value in self._values()))

    def _values(self) -> tuple[float, ...]:
        return self.flops, self.bytes_accessed, self.seconds, self.roofline_seconds


def work_by_origin(program: Program, chip: Chip | None) -> dict[Origin, Work]:
    """The work of one step by what made it, communication left out."""
    found: dict[Origin, Work] = {}
    origins = Origins(program)
    for one, times in program.executed():
        if one.opcode in _NO_WORK or is_collective(one):
            continue
        origin = origins.of(one)
        found[origin] = found.get(origin, Work()) + work_of(program, one, chip).times(times)
    return found


def is_collective(one: Instruction) -> bool:
    """Whether an instruction sends messages; its work is the links', not the core's."""
    name = one.opcode.removesuffix("-start").removesuffix("-done")
    return name in (
        *("all-to-all", "all-gather", "all-reduce", "reduce-scatter", "collective-permute"),
        *("collective-broadcast", "ragged-all-to-all", "send", "recv", "async", "async-update"),
    )


def work_of(program: Program, one: Instruction, chip: Chip | None) -> Work:
    """The work of one execution of an instruction."""
    flops = float(sum(product_flops(program, inner) for inner in program.fused(one)))
    moved = float(bytes_accessed(program, one))
    if chip is None:
        return Work(flops, moved)
    roofline = max(flops / chip.peak_flops, moved / chip.hbm_bandwidth)
    seconds = roofline if one.cycles is None else one.cycles / chip.clock
    return Work(flops, moved, seconds, roofline)


class Origins:
    """The origin of each instruction: its own name's, or where it has none its neighbours'."""

    def __init__(self, program: Program) -> None:
        """Looks at nothing yet."""
        self._program = program
        self._users: dict[str, list[Instruction]] = {}
        for body in program.computations.values():
            for one in body:
                for operand in one.operands:
                    self._users.setdefault(operand, []).append(one)

    def of(self, one: Instruction) -> Origin:
        """Of a fusion the product inside tells more than its last operation."""
        if one.opcode == "fusion":
            for inner in self._program.fused(one):
                if inner.opcode in (*_PRODUCTS, "reduce-window", "sort") and inner.op_name:
                    return origin_of(inner.op_name)
        if one.op_name and (origin := origin_of(one.op_name)) != UNKNOWN:
            return origin
        # Copies and the like have no name of their own: they serve who uses them, or who made them.
        return self._near(one, 4)

    def _near(self, one: Instruction, steps: int) -> Origin:
        by_name = self._program.by_name
        makers = [by_name[name] for name in one.operands if name in by_name]
        for neighbours in (makers, self._users.get(one.name, [])):
            for near in neighbours:
                if near.op_name and near.opcode != "parameter":
                    return origin_of(near.op_name)
        if steps:
            for near in (*makers[:1], *self._users.get(one.name, [])[:1]):
                if (origin := self._near(near, steps - 1)) != UNKNOWN:
                    return origin
        return UNKNOWN

    def producer(self, name: str) -> Origin:
        """The origin of the instruction of this name."""
        one = self._program.by_name.get(name)
        return UNKNOWN if one is None else self.of(one)


def product_flops(program: Program, one: Instruction) -> int:
    """Multiplications and additions of a dot or a convolution; 0 of anything else."""
    if one.opcode == "dot":
        contracting = _CONTRACTING.search(one.attributes)
        lhs = _dims(program, one, 0)
        dims = contracting[1].split(",") if contracting else []
        return 2 * one.arrays[0].size * math.prod(lhs[int(d)] for d in dims if d)
    if one.opcode == "convolution":
        return _convolution_flops(program, one)
    return 0


def _dims(program: Program, one: Instruction, operand: int) -> tuple[int, ...]:
    return program.by_name[one.operands[operand]].arrays[0].dims


def _convolution_flops(program: Program, one: Instruction) -> int:
    """The TPU compiler writes products as convolutions, batch dimensions as dilated windows.

    Only those window positions count that fall on an element of the input rather than on padding.
    """
    labels = _DIM_LABELS.search(one.attributes)
    if labels is None:
        return 0
    lhs, rhs, out = _dims(program, one, 0), _dims(program, one, 1), one.arrays[0].dims
    lhs_labels, rhs_labels, out_labels = labels[1], labels[2], labels[3]
    window = _window(one, sum(c.isdigit() for c in out_labels))
    valid = 1
    for axis, settings in enumerate(window):
        sizes = (
            lhs[lhs_labels.index(str(axis))],
            rhs[rhs_labels.index(str(axis))],
            out[out_labels.index(str(axis))],
        )
        valid *= _valid_positions(*sizes, *settings)
    batch, features = out[out_labels.index("b")], out[out_labels.index("f")]
    inputs = rhs[rhs_labels.index("i")]
    # Group counts need no care: these three sizes are already those of one group.
    return 2 * valid * batch * features * inputs


@functools.lru_cache(maxsize=65536)
def _valid_positions(
    lhs: int, rhs: int, out: int, stride: int, pad: int, lhs_dilate: int, rhs_dilate: int
) -> int:
    """Pairs (output, window position) of one axis that meet an element of the input."""
    dilated = (lhs - 1) * lhs_dilate + 1
    if (
        lhs_dilate == 1
        and rhs_dilate == 1
        and stride == 1
        and pad == 0
        and dilated >= out + rhs - 1
    ):
        return out * rhs
    count = 0
    for position in range(rhs):
        # The output indices o with 0 <= o * stride + offset < dilated, at an undilated element.
        offset = position * rhs_dilate - pad
        first = max(0, -(offset // stride) if offset < 0 else 0)
        last = min(out - 1, (dilated - 1 - offset) // stride)
        if last < first:
            continue
        if lhs_dilate == 1:
            count += last - first + 1
            continue
        period = lhs_dilate // math.gcd(stride, lhs_dilate)
        for o in range(first, min(last, first + period - 1) + 1):
            if (o * stride + offset) % lhs_dilate == 0:
                count += (last - o) // period + 1
                break
    return count


def _window(one: Instruction, axes: int) -> list[tuple[int, int, int, int]]:
    """(stride, low padding, dilation of the input, dilation of the window) of each axis."""
    found = _WINDOW.search(one.attributes)
    entries = dict(entry.split("=") for entry in found[1].split()) if found else {}

    def values(name: str, default: str) -> list[str]:
        return entries[name].split("x") if name in entries else [default] * axes

    return [
        (int(stride), int(pad.split("_")[0]), int(lhs), int(rhs))
        for stride, pad, lhs, rhs in zip(
            values("stride", "1"),
            values("pad", "0_0"),
            values("lhs_dilate", "1"),
            values("rhs_dilate", "1"),
            strict=True,
        )
    ]


def bytes_accessed(program: Program, one: Instruction) -> int:
    """Bytes that an execution of an instruction reads and writes.

    A slice reads what it takes rather than all that it takes it from, and an update in place writes
    its own size: a loop over stacked layers touches one layer at a time.
    """
    if one.opcode in _NO_WORK or one.opcode.endswith("-done"):
        return 0
    by_name = program.by_name
    operands = [by_name[name] for name in one.operands if name in by_name]
    if one.opcode in ("dynamic-slice", "slice", "gather"):
        return 2 * _size(one)
    if one.opcode == "dynamic-update-slice":
        return 2 * _size(operands[1])
    if one.opcode != "fusion":
        return _size(one) + sum(map(_size, operands))
    (computation,) = (program.computations[name] for name in one.calls)
    return _fusion_bytes(computation, operands)


def _fusion_bytes(inside: Sequence[Instruction], operands: Sequence[Instruction]) -> int:
    users: dict[str, list[Instruction]] = {}
    for each in inside:
        for name in each.operands:
            users.setdefault(name, []).append(each)
    moved = 0
    by_name = {each.name: each for each in inside}
    for each in inside:
        if each.opcode == "parameter":
            moved += _read_of(each, users, _size(operands[each.parameter_number]))
        if each.is_root:
            moved += _written(each, by_name)
    return moved


def _read_of(parameter: Instruction, users: Mapping[str, Sequence[Instruction]], whole: int) -> int:
    """Bytes of a fusion's operand that it reads."""
    name = parameter.name
    while len(uses := users.get(name, ())) == 1 and uses[0].opcode in ("bitcast", "reshape"):
        name = uses[0].name
    if uses and all(u.opcode in ("dynamic-slice", "gather") for u in uses):
        return min(whole, sum(map(_size, uses)))
    if uses and all(u.opcode == "dynamic-update-slice" and u.operands[0] == name for u in uses):
        return 0
    return whole


def _written(root: Instruction, by_name: Mapping[str, Instruction]) -> int:
    while root.opcode == "bitcast" and root.operands[0] in by_name:
        root = by_name[root.operands[0]]
    if root.opcode == "tuple":
        return sum(_written(by_name[name], by_name) for name in root.operands)
    if root.opcode == "dynamic-update-slice":
        return _size(by_name[root.operands[1]])
    return _size(root)


def _size(one: Instruction) -> int:
    """Bytes of a result in the device's main memory; space 0 is HBM, others are on the core."""
    return sum(array.allocated for array in one.arrays if array.space == 0)
