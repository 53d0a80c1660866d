"""The text of a compiled program, read: what each device runs, in the order it runs it.

XLA prints a partitioned, scheduled program as computations of instructions, one a line:

    %all-to-all.1 = bf16[1,8,512,256]{3,2,1,0:T(8,128)(2,1)} all-to-all(%fusion.99), channel_id=3,
      replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={1}, metadata={op_name="jit(call)/..."}

Shapes are those of one device. The entry computation calls others: fusions, which run as one kernel,
and loops, whose body runs as often as the compiler found.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence

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
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_DIRECTION = re.compile(r"direction=(\w+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_ELEMENT = "get-tuple-element"
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a shape: dtype, sizes, its layout's order (minor first), tile and memory space."""

    dtype: str
    dims: tuple[int, ...]
    order: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = 0

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements alone."""
        return int(self.size * _BYTES.get(self.dtype, 4))

    @property
    def allocated(self) -> int:
        """Bytes in memory: a TPU rounds the two minor dimensions up to its tiles."""
        if not self.tile or not self.dims:
            return self.nbytes
        dims, order = list(self.dims), self.order or tuple(range(len(self.dims) - 1, -1, -1))
        for dim, tile in zip(order, reversed(self.tile), strict=False):
            dims[dim] = -(-dims[dim] // tile) * tile
        return int(math.prod(dims) * _BYTES.get(self.dtype, 4))

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@functools.lru_cache(maxsize=65536)
def parse_shape(text: str) -> tuple[Array, ...]:
    """The arrays of a shape: one, or those of a tuple in order."""
    arrays = []
    for dtype, dims, order, layout in _ARRAY.findall(text):
        tile, space = _TILE.search(layout), _SPACE.search(layout)
        arrays.append(
            Array(
                dtype,
                tuple(int(n.lstrip("<=")) for n in dims.split(",") if n),
                tuple(int(n) for n in order.split(",") if n),
                tuple(int(n) for n in tile[1].split(",")) if tile else (),
                int(space[1]) if space else 0,
            )
        )
    return tuple(arrays)


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a program.

    Attributes:
      name: unique in the program.
      opcode: such as "fusion" or "all-to-all-start".
      shape: text of the result's shape.
      operands: names of the instructions whose results it takes.
      attributes: what stands behind the operands.
      is_root: whether it is the result of its computation.
    """

    name: str
    opcode: str
    shape: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool = False

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result."""
        return parse_shape(self.shape)

    @property
    def op_name(self) -> str:
        """The name that TensorFlow gave the operation it came from; "" where it is unknown."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def cycles(self) -> int | None:
        """The TPU compiler's estimate; None where it gives none."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found else None

    @property
    def parameter_number(self) -> int:
        """Of a parameter: which argument of its computation it is."""
        return int(self.attributes[: self.attributes.index(")")])

    @property
    def calls(self) -> tuple[str, ...]:
        """Names of the computations it calls."""
        names = _CALLS.findall(self.attributes)
        for listed in _CALL_LISTS.findall(self.attributes):
            names += _NAME.findall(listed)
        return tuple(names)


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program.

    Attributes:
      computations: name -> instructions in the order of the schedule.
      entry: the name of the computation that a device runs.
    """

    computations: dict[str, tuple[Instruction, ...]]
    entry: str

    @property
    def num_instructions(self) -> int:
        """Instructions of all computations, those inside fusions included."""
        return sum(map(len, self.computations.values()))

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        """Every instruction by its name."""
        return {one.name: one for body in self.computations.values() for one in body}

    def executed(self) -> Iterator[tuple[Instruction, int]]:
        """Each instruction that a device runs as a step of its own, and how often in one step.

        What is inside a fusion is the fusion's; loops, calls and conditionals are followed, every
        branch of a conditional as if taken. A loop of unknown length counts once.
        """
        yield from self._executed(self.entry, 1)

    def _executed(self, computation: str, times: int) -> Iterator[tuple[Instruction, int]]:
        for one in self.computations[computation]:
            if one.opcode == "while":
                trips = times * self.trip_count(one)
                for name in _loop(one):
                    yield from self._executed(name, trips)
            elif one.opcode in ("call", "conditional", "async-start"):
                for name in one.calls:
                    yield from self._executed(name, times)
            else:
                yield one, times

    def trip_count(self, loop: Instruction) -> int:
        """How often the body of a loop runs; 1 where that cannot be told.

        The last passes of the TPU compiler drop the note of it, but the counter can be followed: where
        it starts in the loop's operand, the bound that the condition compares it to, and its step.
        """
        known = _TRIPS.search(loop.attributes)
        if known:
            return int(known[1])
        condition = _CONDITION.search(loop.attributes)
        if condition is None or condition[1] not in self.computations:
            return 1
        for one in self._within(self.computations[condition[1]]):
            direction = _DIRECTION.search(one.attributes)
            if one.opcode != "compare" or direction is None:
                continue
            values = [self._constant(name) for name in one.operands]
            counters = [self._counter(name, loop) for name in one.operands]
            bound = next((value for value in values if value is not None), None)
            counter = next((found for found in counters if found is not None), None)
            if bound is not None and counter is not None:
                start, step = counter
                return -(-(abs(bound - start) + (direction[1] in ("LE", "GE"))) // step)
        return 1

    def _constant(self, name: str) -> int | None:
        """The value of an integer constant, through copies; None of anything else."""
        one = self.by_name.get(name)
        while one is not None and one.opcode in ("copy", "bitcast") and one.operands:
            one = self.by_name.get(one.operands[0])
        if one is None or one.opcode != "constant":
            return None
        found = re.match(r"(-?\d+)\)", one.attributes)
        return int(found[1]) if found else None

    def _counter(self, name: str, loop: Instruction) -> tuple[int, int] | None:
        """The first value of what a loop's condition reads from the loop's state, and its step."""
        one = self.by_name.get(name)
        # Inside a fusion the counter is a parameter, and the only scalar that the condition has.
        if one is not None and one.opcode == "parameter":
            readers = [i for i in self._within(self._condition(loop)) if i.opcode == _ELEMENT]
            one = readers[0] if len(readers) == 1 else None
        found = _INDEX.search(one.attributes) if one and one.opcode == _ELEMENT else None
        state = self.by_name.get(loop.operands[0]) if loop.operands else None
        if found is None or state is None or state.opcode != "tuple":
            return None
        place = int(found[1])
        start = self._constant(state.operands[place])
        return None if start is None else (start, self._step(loop, place))

    def _step(self, loop: Instruction, place: int) -> int:
        """How far an execution of a loop's body moves its counter: an unrolled loop's by more than 1."""
        body = _BODY.search(loop.attributes)
        results = [i for i in self.computations.get(body[1], ()) if i.is_root] if body else []
        after = results[0].operands[place : place + 1] if results else ()
        one = self.by_name.get(after[0]) if after else None
        steps = [self._constant(name) for name in one.operands] if one else []
        if one is None or one.opcode not in ("add", "subtract"):
            return 1
        return next((abs(step) for step in steps if step), 1)

    def _condition(self, loop: Instruction) -> Sequence[Instruction]:
        found = _CONDITION.search(loop.attributes)
        return self.computations.get(found[1], ()) if found else ()

    def _within(self, computation: Sequence[Instruction]) -> Iterator[Instruction]:
        for one in computation:
            yield one
            for name in one.calls:
                yield from self._within(self.computations.get(name, ()))

    def fused(self, one: Instruction) -> Iterator[Instruction]:
        """The instruction itself, or where it is a fusion what was fused, at any depth."""
        if one.opcode == "fusion":
            for name in one.calls:
                for inner in self.computations.get(name, ()):
                    yield from self.fused(inner)
        else:
            yield one


def _loop(one: Instruction) -> list[str]:
    found = (_BODY.search(one.attributes), _CONDITION.search(one.attributes))
    return [name[1] for name in found if name]


def parse(text: str) -> Program:
    """Reads the text of a compiled program."""
    computations: dict[str, tuple[Instruction, ...]] = {}
    body: list[Instruction] = []
    entry, name = "", ""
    for line in text.splitlines():
        if name:
            if line.startswith("}"):
                computations[name], name = tuple(body), ""
            else:
                one = _instruction(line)
                if one is not None:
                    body.append(one)
        elif found := _COMPUTATION.match(line):
            name, body = found[2], []
            if found[1]:
                entry = name
    return Program(computations, entry)


def _instruction(line: str) -> Instruction | None:
    head = _HEAD.match(line)
    if head is None:
        return None
    at = head.end()
    # A tuple's shape is in parentheses, which also occur inside: `(f32[8]{0:T(8)}, s32[])`.
    end = _closing(line, at) + 1 if line[at] == "(" else line.index(" ", at)
    opcode = _OPCODE.match(line, end + 1)
    if opcode is None:
        return None
    if opcode[1] in ("constant", "parameter"):  # a value or a number, kept with the attributes
        operands, rest = "", line[opcode.end() :]
    else:
        close = _closing(line, opcode.end() - 1)
        operands, rest = line[opcode.end() : close], line[close + 1 :]
    return Instruction(
        head[2],
        opcode[1],
        line[at:end],
        tuple(_NAME.findall(operands)),
        rest,
        head[1] is not None,
    )


def _closing(line: str, at: int) -> int:
    """The place of the parenthesis that closes the one at `at`."""
    depth = 0
    for match in re.compile(r"[()]").finditer(line, at):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return len(line)
