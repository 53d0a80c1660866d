"""Reads the text of a compiled program: the instructions of one device, in the order of execution.

XLA prints a partitioned and scheduled program as computations. Each line is one instruction:

    %all-to-all.1 = bf16[1,8,512,256]{3,2,1,0:T(8,128)(2,1)} all-to-all(%fusion.99), channel_id=3,
      replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={1}, metadata={op_name="jit(call)/..."}

Shapes are those of one device. The entry computation calls other computations: fusions, which run as
one kernel, and loops.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_BYTES = {
    "pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4, "u32": 4,
    "s64": 8, "u64": 8, "f8e4m3fn": 1, "f8e5m2": 1, "f16": 2, "bf16": 2, "f32": 4, "f64": 8,
    "c64": 8, "c128": 16, "token": 0, "opaque": 0,
}  # fmt: skip
_ARRAY = re.compile(r"(\w+)\[([\d,<=]*)\](?:\{([\d,]*)((?::[^{}]*)?)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_HEAD = re.compile(r"\s*(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"([\w\-]+)\(")
_NAME = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'metadata=\{[^}]*?op_name="([^"]*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_CALLS = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_CALL_LISTS = re.compile(r"(?:called_computations|branch_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_DIRECTION = re.compile(r"direction=(\w+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_PARENTHESIS = re.compile(r"[()]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")


@dataclasses.dataclass(frozen=True)
class Array:
    """An array that an instruction returns, alone or as an element of a tuple."""

    dtype: str  # XLA's name, for example "bf16"
    dims: tuple[int, ...]  # sizes in elements
    order: tuple[int, ...] = ()  # the layout, dimensions by number, the minor (fastest) first
    tile: tuple[int, ...] = ()  # sizes of a TPU's tile over the minor dimensions
    space: int = 0  # memory space; 0 is the device's main memory, others are on the core

    @property
    def size(self) -> int:
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without padding."""
        return int(self.size * _BYTES.get(self.dtype, 4))

    @property
    def allocated(self) -> int:
        """Bytes in memory; a TPU rounds the minor dimensions up to whole tiles."""
        dims, order = list(self.dims), self.order or tuple(range(len(self.dims) - 1, -1, -1))
        for dim, tile in zip(order, reversed(self.tile), strict=False):
            dims[dim] = -(-dims[dim] // tile) * tile
        return int(math.prod(dims) * _BYTES.get(self.dtype, 4))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@functools.lru_cache(maxsize=65536)
def parse_shape(text: str) -> tuple[Array, ...]:
    """Returns the arrays of a shape: one array, or the elements of a tuple in order."""
    arrays = []
    for dtype, dims, order, layout in _ARRAY.findall(text):
        tile, space = _TILE.search(layout), _SPACE.search(layout)
        lists = dims.replace("<=", ""), order, tile[1] if tile else ""
        sizes, minor_first, tiles = (tuple(int(n) for n in x.split(",") if n) for x in lists)
        arrays.append(Array(dtype, sizes, minor_first, tiles, int(space[1]) if space else 0))
    return tuple(arrays)


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a program's text."""

    name: str  # unique in the program
    opcode: str  # for example "fusion" or "all-to-all-start"
    shape: str  # text of the result's shape
    operands: tuple[str, ...]  # names of the instructions whose results it reads
    attributes: str  # the text after the operands
    is_root: bool = False  # whether its result is the result of its computation

    @property
    def arrays(self) -> tuple[Array, ...]:
        return parse_shape(self.shape)

    @property
    def op_name(self) -> str:
        """TensorFlow's name of the operation; "" if XLA kept none."""
        match = _OP_NAME.search(self.attributes)
        return match[1] if match else ""

    @property
    def cycles(self) -> int | None:
        """Clock cycles that the TPU compiler estimates; None without an estimate."""
        match = _CYCLES.search(self.attributes)
        return int(match[1]) if match else None

    @property
    def parameter_number(self) -> int:
        """Index of the argument that this parameter stands for; only for parameters."""
        return int(self.attributes[: self.attributes.index(")")])

    @property
    def index(self) -> int:
        """Index of the element of a tuple; only for get-tuple-element."""
        match = _INDEX.search(self.attributes)
        return int(match[1]) if match else 0

    @property
    def calls(self) -> tuple[str, ...]:
        names = _CALLS.findall(self.attributes)
        for listed in _CALL_LISTS.findall(self.attributes):
            names += _NAME.findall(listed)
        return tuple(names)


@dataclasses.dataclass(frozen=True)
class HloModule:
    """The parsed text of a compiled program."""

    # name -> instructions in the order of the schedule
    computations: dict[str, tuple[Instruction, ...]]
    entry: str  # name of the computation that a device runs

    @property
    def num_instructions(self) -> int:
        return sum(map(len, self.computations.values()))

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {i.name: i for body in self.computations.values() for i in body}

    @functools.cached_property
    def users(self) -> dict[str, list[Instruction]]:
        users: dict[str, list[Instruction]] = {}
        for instruction in self.by_name.values():
            for operand in instruction.operands:
                users.setdefault(operand, []).append(instruction)
        return users

    def executed(self, computation: str = "", times: int = 1) -> Iterator[tuple[Instruction, int]]:
        """Yields each instruction that a device executes, and how often it does so in a step.

        A fusion is one instruction. Loops, calls and conditionals are followed, and every branch of
        a conditional counts as taken. A loop of unknown length counts once.
        """
        for instruction in self.computations[computation or self.entry]:
            if instruction.opcode == "while":
                trips = times * self.trip_count(instruction)
                yield from self.executed(_called(instruction, "body"), trips)
                yield from self.executed(_called(instruction, "condition"), trips)
            elif instruction.opcode in ("call", "conditional", "async-start"):
                for name in instruction.calls:
                    yield from self.executed(name, times)
            else:
                yield instruction, times

    def trip_count(self, loop: Instruction) -> int:
        """Returns how often the body of a loop runs; 1 if the text does not tell.

        The last passes of the TPU compiler drop the known trip count. We then compute it from the
        first value of the counter (in the loop's operand), the bound (in the condition) and the
        increment (in the body). A counter that starts from a computed value counts from 0: the loop over
        the blocks of a pipeline's stage starts from a 0 that the compiler does not know.
        """
        if known := _TRIPS.search(loop.attributes):
            return int(known[1])
        condition = list(self._within(_called(loop, "condition")))
        elements = {i.name: i.index for i in condition if i.opcode == "get-tuple-element"}
        state = self.by_name[loop.operands[0]]
        for compare in condition if state.opcode == "tuple" else ():
            direction = _DIRECTION.search(compare.attributes)
            counters = [elements[name] for name in compare.operands if name in elements]
            # Inside a fusion the counter is a parameter. If the condition reads only one element of the
            # loop's state, that element is the counter.
            counters += elements.values() if len(elements) == 1 else []
            bounds = [n for n in map(self._constant, compare.operands) if n is not None]
            if compare.opcode == "compare" and direction and counters and bounds:
                start = self._constant(state.operands[counters[0]]) or 0
                distance = abs(bounds[0] - start) + (direction[1] in ("LE", "GE"))
                return max(1, -(-distance // self._increment(loop, counters[0])))
        return 1

    def _constant(self, name: str) -> int | None:
        """Returns the value of an integer constant or of a copy of one; None otherwise."""
        instruction = self.by_name.get(name)
        while instruction and instruction.opcode in ("copy", "bitcast"):
            instruction = self.by_name.get(instruction.operands[0])
        if instruction is None or instruction.opcode != "constant":
            return None
        match = re.match(r"(-?\d+)\)", instruction.attributes)
        return int(match[1]) if match else None

    def _increment(self, loop: Instruction, index: int) -> int:
        """Returns the amount by which one run of the body changes element `index` of the loop's state.

        If the compiler unrolled the loop, the amount is above 1.
        """
        (result,) = (i for i in self.computations[_called(loop, "body")] if i.is_root)
        after = self.by_name.get(result.operands[index]) if result.opcode == "tuple" else None
        if after is None or after.opcode not in ("add", "subtract"):
            return 1
        return next((abs(value) for value in map(self._constant, after.operands) if value), 1)

    def _within(self, computation: str) -> Iterator[Instruction]:
        for instruction in self.computations.get(computation, ()):
            yield instruction
            for name in instruction.calls:
                yield from self._within(name)

    def fused(self, instruction: Instruction) -> Iterator[Instruction]:
        """Yields the instructions inside a fusion, at any depth.

        If the instruction is not a fusion, it yields only the instruction.
        """
        if instruction.opcode == "fusion":
            for name in instruction.calls:
                for inner in self.computations.get(name, ()):
                    yield from self.fused(inner)
        else:
            yield instruction


def _called(loop: Instruction, role: str) -> str:
    """Returns the name of the body or of the condition of a loop."""
    match = re.search(rf"\b{role}=%?([\w.\-]+)", loop.attributes)
    return match[1] if match else ""


def parse(text: str) -> HloModule:
    computations: dict[str, tuple[Instruction, ...]] = {}
    body: list[Instruction] = []
    entry, name = "", ""
    for line in text.splitlines():
        if name and line.startswith("}"):
            computations[name], name = tuple(body), ""
        elif name:
            body += _instruction(line)
        elif match := _COMPUTATION.match(line):
            name, body = match[2], []
            entry = name if match[1] else entry
    return HloModule(computations, entry)


def _instruction(line: str) -> list[Instruction]:
    """Parses one line; [] if it is no instruction."""
    head = _HEAD.match(line)
    if head is None:
        return []
    at = head.end()
    # The shape of a tuple is in parentheses, and a layout inside it may have parentheses too:
    # `(f32[8]{0:T(8)}, s32[])`.
    end = _closing(line, at) + 1 if line[at] == "(" else line.index(" ", at)
    opcode = _OPCODE.match(line, end + 1)
    if opcode is None:
        return []
    operands, rest = "", line[opcode.end() :]
    if opcode[1] not in ("constant", "parameter"):  # their value or index stays in the attributes
        close = _closing(line, opcode.end() - 1)
        operands, rest = line[opcode.end() : close], line[close + 1 :]
    names = tuple(_NAME.findall(operands))
    return [Instruction(head[2], opcode[1], line[at:end], names, rest, head[1] is not None)]


def _closing(line: str, at: int) -> int:
    """Returns the position of the parenthesis that closes the one at `at`."""
    depth = 0
    for match in _PARENTHESIS.finditer(line, at):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(line)
