"""Counts the arithmetic and the memory traffic of a compiled program, with a roofline for each origin.

XLA and the TPU compiler keep the names of TensorFlow's operations and their name scopes. For example,

    jit(call)/lowered_program/gradient_tape/decoder_3_moe_0/experts/einsum_4

is the backward pass of a product in the experts of the decoder's fourth block.

GShard section 5.2, Figure 8: an operation takes at least the longest of three times. These are its
arithmetic at the chip's peak, its bytes at the memory's bandwidth, its messages at the links' bandwidth.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from gshard_nmt.inspection.hlo import HloModule, Instruction
from gshard_nmt.spmd.program import COLLECTIVE_KINDS
from gshard_nmt.spmd.topology import Chip, peak_of

_NO_WORK = ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all")
_PRODUCTS = ("dot", "convolution")
_SLICES = ("dynamic-slice", "slice", "gather")
_COMMUNICATION = (
    *COLLECTIVE_KINDS,
    *("collective-broadcast", "ragged-all-to-all", "send", "recv", "async", "async-update"),
)
_DIM_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_CONTRACTING = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")


WORK_KINDS = (
    *("attention", "feed-forward", "experts", "gate einsums", "gating", "dispatch and combine"),
    *("embedding and loss", "optimizer", "gradients and metrics", "other"),
)
"""Kinds of work: those of GShard Figure 8, and the parts of a step that the figure leaves out."""

DIRECTIONS = ("forward", "recomputed", "backward")

_LAYER = re.compile(
    r"(?P<stack>encoder|decoder)[/_](?:(?P<repeat>\d+)[/_])?"
    r"(?P<sublayer>(?:self_attention|cross_attention|feed_forward|moe)_\d+)"
)
_STACK = re.compile(r"(?:^|/)(encoder|decoder)(?:[/_]|$)")
_PREFIX = re.compile(r"^jit\([^)]*\)/(?:lowered_program/)?")
_EINSUM = re.compile(r"(?i)einsum|dot|conv|matmul")
_OUTSIDE = tuple((re.compile(pattern), part, kind) for pattern, part, kind in (
    (r"adafactor",                                "adafactor",            "optimizer"),
    (r"(?:^|/)accumulation(?:/|$)",               "accumulation",         "gradients and metrics"),
    (r"^guard(?:/|$)",                            "guard",                "optimizer"),
    (r"^ema(?:/|$)",                              "ema",                  "optimizer"),
    (r"^token_counts(?:/|$)",                     "token_counts",         "gradients and metrics"),
    (r"^figures(?:/|$)",                          "figures",              "gradients and metrics"),
    (r"(?:^|/)loss(?:/|$)",                       "loss",                 "embedding and loss"),
    (r"while.*(?:Xla(?!Dot)|Broadcast|Zeros|fill)[^/]*$", "stacked gradients",   "gradients and metrics"),
    (r"(?:^|/)BroadcastTo(?:_\d+)?$",             "stacked gradients",    "gradients and metrics"),
    (rf"{_EINSUM.pattern}|gather|embed|one_?hot|segment", "embedding and logits", "embedding and loss"),
    (r"AddN|gradient_norm|Sqrt|Square|^Sum",      "gradient norm",        "gradients and metrics"),
))  # fmt: skip
"""Outside the layers: a pattern of the path of an operation -> its part and its kind of work."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """The part of the model that an instruction was compiled from."""

    # "decoder 3 moe_0" (stack, number of the block, sub-layer), "decoder moe_0" inside a loop over
    # the blocks, "" outside the layers
    layer: str
    part: str  # the innermost name scope or the operation, for example "dispatch" or "Softmax"
    kind: str  # one of WORK_KINDS
    # name scopes within the layer, including the name of the weight that is used
    scopes: tuple[str, ...] = ()
    # one of DIRECTIONS. "backward" is the gradient; "recomputed" is the forward pass that the
    # backward pass computes a second time.
    direction: str = "forward"

    @property
    def backward(self) -> bool:
        return self.direction == "backward"

    @property
    def place(self) -> str:
        """A short name: "decoder 3 moe_0, dispatch (backward)"."""
        name = ", ".join(filter(None, (self.layer, self.part)))
        return (name or self.kind) + ("" if self.direction == "forward" else f" ({self.direction})")


UNKNOWN = Origin("", "", "other")

_SCOPES = {
    "gating": "gating",
    **dict.fromkeys(("dispatch", "combine"), "dispatch and combine"),
    "experts": "experts",
    "shared_expert": "feed-forward",
}
"""Name scope inside an MoE layer -> kind of work. `_kind` adds the kind "gate einsums"."""

_TRANSPOSES = {"transpose": "dispatch", "transpose_1": "combine"}
"""The two transposes that reshard in an MoE layer, in the order of execution."""


@functools.lru_cache(maxsize=65536)
def origin_of(op_name: str) -> Origin:
    # If XLA merged several operations, it joins their names with ";", the most useful one first.
    path = _PREFIX.sub("", op_name.split(";")[0])
    if not path:
        return UNKNOWN
    direction = "recomputed" if "recomputed" in path else "forward"
    # The gradient of a gather has no scope "gradient_tape". It is a sum over segments.
    if any(mark in path for mark in ("gradient_tape", "gradients/", "UnsortedSegmentSum")):
        direction = "backward"
    layer = _LAYER.search(path)
    if layer is None:
        *scopes, last = _names(path.split("/"))
        for pattern, part, kind in _OUTSIDE:
            if pattern.search(path):
                return Origin("", part, kind, tuple(scopes), direction)
        stack = _STACK.search(path)
        return Origin(stack[1] if stack else "", last, "other", tuple(scopes), direction)
    # "while/body/gradient_tape/decoder/moe_0/gating/Softmax" -> "gating/Softmax"
    inside = [part for part in path[layer.end() :].split("/") if part]
    scopes = [part for part in inside[:-1] if part in _SCOPES]
    part = scopes[-1] if scopes else ""
    if inside and not scopes:
        part = _TRANSPOSES.get(inside[0]) or _names(inside[:1])[0]
    name = " ".join(filter(None, layer.groups()))
    kind = _kind(layer["sublayer"], inside)
    return Origin(name, part, kind, tuple(_names(inside[:-1])), direction)


def _names(parts: list[str]) -> list[str]:
    """Returns the names without the suffixes that make them unique."""
    return [re.sub(r"_\d+$", "", part) for part in parts]


def _kind(sublayer: str, inside: list[str]) -> str:
    if "attention" in sublayer:
        return "attention"
    if sublayer.startswith("feed_forward"):
        return "feed-forward"
    is_product = any(_EINSUM.search(part) for part in inside)
    scope = next((part for part in inside if part in _SCOPES), "")
    if not scope:
        return "experts" if is_product else "gating"
    # The gate's projection to the logits GSE, and the products with the one-hot tensors GSEC.
    is_of_gate = is_product and scope not in ("experts", "shared_expert")
    return "gate einsums" if is_of_gate else _SCOPES[scope]


def find_origin(module: HloModule, instruction: Instruction) -> Origin:
    """Returns the origin of an instruction; for a fusion, the origin of the product inside."""
    if instruction.opcode == "fusion":
        for inner in module.fused(instruction):
            if inner.opcode in (*_PRODUCTS, "reduce-window", "sort") and inner.op_name:
                return origin_of(inner.op_name)
    if instruction.op_name and (origin := origin_of(instruction.op_name)) != UNKNOWN:
        return origin
    # A copy has no name. Take the origin of the instruction that it reads, or that reads it.
    return _nearest_origin(module, instruction, 4)


def _nearest_origin(module: HloModule, instruction: Instruction, distance: int) -> Origin:
    """Returns the origin of the nearest neighbor with a name, at most `distance` away."""
    by_name, users = module.by_name, module.users.get(instruction.name, [])
    makers = [by_name[name] for name in instruction.operands if name in by_name]
    for near in (*makers, *users):
        if near.op_name and near.opcode != "parameter":
            return origin_of(near.op_name)
    for near in (*makers[:1], *users[:1]) if distance else ():
        if (origin := _nearest_origin(module, near, distance - 1)) != UNKNOWN:
            return origin
    return UNKNOWN


@dataclasses.dataclass(frozen=True)
class Work:
    """The cost of one or more instructions on one device, in one step."""

    flops: float = 0.0  # multiplications and additions of matrix products and convolutions
    bytes_accessed: float = 0.0  # bytes read from and written to the device's main memory
    # the compiler's estimate, or the roofline if there is no estimate; 0 for a CPU
    seconds: float = 0.0
    # the larger of two times, arithmetic at peak FLOPS and memory traffic at peak bandwidth; 0 for a CPU
    roofline_seconds: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Work(*(a + b for a, b in pairs))

    def times(self, n: int) -> "Work":
        return Work(*(n * value for value in dataclasses.astuple(self)))


def work_by_origin(module: HloModule, chip: Chip | None) -> dict[Origin, Work]:
    """Returns the work of one step for each origin, without communication."""
    work: dict[Origin, Work] = {}
    for instruction, times in module.executed():
        opcode = instruction.opcode.removesuffix("-start").removesuffix("-done")
        if opcode not in (*_NO_WORK, *_COMMUNICATION):
            origin = find_origin(module, instruction)
            own = work_of(module, instruction, chip).times(times)
            work[origin] = work.get(origin, Work()) + own
    return work


def work_of(module: HloModule, instruction: Instruction, chip: Chip | None) -> Work:
    products = [
        (float(count), module.by_name[inner.operands[0]].arrays[0].dtype)
        for inner in module.fused(instruction)
        if (count := product_flops(module, inner))
    ]
    flops = sum(count for count, _ in products)
    moved = float(bytes_accessed(module, instruction))
    if chip is None:
        return Work(flops, moved)
    arithmetic = sum(count / peak_of(chip, dtype) for count, dtype in products)
    roofline = max(arithmetic, moved / chip.hbm_bandwidth)
    seconds = roofline if instruction.cycles is None else instruction.cycles / chip.clock
    return Work(flops, moved, seconds, roofline)


def product_flops(module: HloModule, instruction: Instruction) -> int:
    """Returns the FLOPs of a dot or a convolution; 0 for other instructions.

    The TPU compiler writes matrix products as convolutions, with batch dimensions as dilated
    windows. A window position counts only if it falls on an element of the input, not on padding.
    """
    if instruction.opcode not in _PRODUCTS:
        return 0
    arrays = (*(module.by_name[name].arrays[0] for name in instruction.operands[:2]),)
    result, attributes = instruction.arrays[0], instruction.attributes
    if instruction.opcode == "dot":
        contracting = _CONTRACTING.search(attributes)
        dims = contracting[1].split(",") if contracting else []
        return 2 * result.size * math.prod(arrays[0].dims[int(d)] for d in dims if d)
    labels = _DIM_LABELS.search(attributes)
    if labels is None:
        return 0
    lhs, rhs, out = (
        dict(zip(names, array.dims, strict=False))
        for names, array in zip(labels.groups(), (*arrays, result), strict=True)
    )
    window = _WINDOW.search(attributes)
    settings = dict(entry.split("=") for entry in window[1].split()) if window else {}
    valid = 1
    for number, axis in enumerate(sorted(filter(str.isdigit, out))):
        # Padding is "low_high", and only the low one moves the window.
        stride, pad, lhs_dilate, rhs_dilate = (
            int(settings[name].split("x")[number].split("_")[0]) if name in settings else default
            for name, default in (("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1))
        )
        sizes = lhs[axis], rhs[axis], out[axis]
        valid *= _valid_positions(*sizes, stride, pad, lhs_dilate, rhs_dilate)
    # `i` counts the input features of one feature group, so the number of groups does not matter.
    return 2 * valid * out["b"] * out["f"] * rhs["i"]


@functools.lru_cache(maxsize=65536)
def _valid_positions(
    lhs: int, rhs: int, out: int, stride: int, pad: int, lhs_dilate: int, rhs_dilate: int
) -> int:
    """Counts the pairs (output, window position) of one axis that meet an element of the input."""
    outputs = np.arange(out) * stride - pad
    count = 0
    for position in range(rhs):
        at = outputs + position * rhs_dilate
        inside = (at >= 0) & (at <= (lhs - 1) * lhs_dilate) & (at % lhs_dilate == 0)
        count += int(np.count_nonzero(inside))
    return count


def bytes_accessed(module: HloModule, instruction: Instruction) -> int:
    """Returns the bytes that one execution of an instruction reads and writes.

    A slice reads only the part that it takes, and an update in place writes only the part that it
    changes. So a loop over stacked layers reads one layer in each iteration.
    """
    if instruction.opcode in _NO_WORK or instruction.opcode.endswith("-done"):
        return 0
    by_name = module.by_name
    operands = [by_name[name] for name in instruction.operands if name in by_name]
    if instruction.opcode in _SLICES:
        return 2 * _size(instruction)
    if instruction.opcode == "dynamic-update-slice":
        return 2 * _size(operands[1])
    if instruction.opcode != "fusion":
        return _size(instruction) + sum(map(_size, operands))
    (name,) = instruction.calls
    inside = module.computations[name]
    read = sum(
        _read_of(parameter, module.users, _size(operands[parameter.parameter_number]))
        for parameter in inside
        if parameter.opcode == "parameter"
    )
    return read + sum(_written(root, by_name) for root in inside if root.is_root)


def _read_of(parameter: Instruction, users: Mapping[str, Sequence[Instruction]], whole: int) -> int:
    """Returns the bytes that a fusion reads of a parameter; the whole parameter has `whole` bytes."""
    name = parameter.name
    while len(uses := users.get(name, ())) == 1 and uses[0].opcode in ("bitcast", "reshape"):
        name = uses[0].name
    if uses and all(u.opcode in _SLICES for u in uses):
        return min(whole, sum(map(_size, uses)))
    if uses and all(u.opcode == "dynamic-update-slice" and u.operands[0] == name for u in uses):
        return 0
    return whole


def _written(root: Instruction, by_name: Mapping[str, Instruction]) -> int:
    while root.opcode == "bitcast":
        root = by_name[root.operands[0]]
    if root.opcode == "tuple":
        return sum(_written(by_name[name], by_name) for name in root.operands)
    return _size(by_name[root.operands[1]] if root.opcode == "dynamic-update-slice" else root)


def _size(instruction: Instruction) -> int:
    """Returns the bytes of a result in the device's main memory (space 0)."""
    return sum(array.allocated for array in instruction.arrays if array.space == 0)
