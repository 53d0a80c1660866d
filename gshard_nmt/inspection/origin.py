"""Tells from which layer and operation of the model a compiled instruction comes.

XLA and the TPU compiler keep the names of TensorFlow's operations and their name scopes. For example,

    jit(call)/lowered_program/gradient_tape/decoder_3_moe_0/experts/einsum_4/Einsum_1

is the backward pass of a product in the experts of the decoder's fourth block.
"""

import dataclasses
import functools
import re

WORK_KINDS = (
    "attention",
    "feed-forward",
    "experts",
    "gate einsums",
    "gating",
    "dispatch and combine",
    "embedding and loss",
    "optimizer",
    "gradients and metrics",
    "other",
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
        """Whether it is part of the gradient."""
        return self.direction == "backward"

    @property
    def place(self) -> str:
        """A short name: "decoder 3 moe_0, dispatch (backward)"."""
        name = ", ".join(filter(None, (self.layer, self.part)))
        return (name or self.kind) + ("" if self.direction == "forward" else f" ({self.direction})")


UNKNOWN = Origin("", "", "other")


@functools.lru_cache(maxsize=65536)
def origin_of(op_name: str) -> Origin:
    """Returns the origin of an operation by its TensorFlow name."""
    # If XLA merged several operations, it joins their names with ";", the most useful one first.
    path = _PREFIX.sub("", op_name.split(";")[0])
    if not path:
        return UNKNOWN
    layer = _LAYER.search(path)
    if layer is None:
        scopes = _names(path.split("/")[:-1])
        return Origin(*_outside(path), scopes, _direction(path))
    stack, repeat, sublayer = layer["stack"], layer["repeat"], layer["sublayer"]
    # "while/body/gradient_tape/decoder/moe_0/gating/Softmax" -> "gating/Softmax"
    inside = [part for part in path[layer.end() :].split("/") if part]
    name = " ".join(filter(None, (stack, repeat, sublayer)))
    kind, scopes = _kind(sublayer, inside), _names(inside[:-1])
    return Origin(name, _part(inside), kind, scopes, _direction(path))


def _names(parts: list[str]) -> tuple[str, ...]:
    """Returns the names without the suffixes that make them unique."""
    return tuple(re.sub(r"_\d+$", "", part) for part in parts)


def _direction(path: str) -> str:
    """Returns one of DIRECTIONS."""
    # The gradient of a gather has no scope "gradient_tape". It is a sum over segments.
    if any(mark in path for mark in ("gradient_tape", "gradients/", "UnsortedSegmentSum")):
        return "backward"
    return "recomputed" if "recomputed" in path else "forward"


def _part(inside: list[str]) -> str:
    """Returns the innermost known name scope, or else the operation."""
    scopes = [part for part in inside[:-1] if part in _SCOPES]
    if scopes or not inside:
        return scopes[-1] if scopes else ""
    return _TRANSPOSES.get(inside[0]) or _names(inside[:1])[0]


_TRANSPOSES = {"transpose": "dispatch", "transpose_1": "combine"}
"""The two transposes that reshard in an MoE layer, in the order of execution."""


_SCOPES = {
    "gating": "gating",
    "dispatch": "dispatch and combine",
    "combine": "dispatch and combine",
    "experts": "experts",
    "shared_expert": "feed-forward",
}
"""Name scope inside an MoE layer -> kind of work. `_kind` adds the kind "gate einsums"."""


def _kind(sublayer: str, inside: list[str]) -> str:
    """Returns the kind of work of an operation inside a sub-layer."""
    if sublayer.endswith("attention", 0, sublayer.rfind("_")):
        return "attention"
    if sublayer.startswith("feed_forward"):
        return "feed-forward"
    product = any(_EINSUM.search(part) for part in inside)
    scope = next((part for part in inside if part in _SCOPES), "")
    if product and scope and scope not in ("experts", "shared_expert"):
        # The gate's projection to the logits GSE, and the products with the one-hot tensors GSEC.
        return "gate einsums"
    if scope:
        return _SCOPES[scope]
    return "experts" if product else "gating"


def _outside(path: str) -> tuple[str, str, str]:
    """Returns layer, part and kind of an operation outside the layers."""
    last = re.sub(r"_\d+$", "", path.rsplit("/", 1)[-1])
    if "adafactor" in path:
        return "", "adafactor", "optimizer"
    if "accumulation" in path.split("/"):
        return "", "accumulation", "gradients and metrics"
    scope = path.split("/")[0]
    if scope in ("guard", "ema"):
        return "", scope, "optimizer"
    if scope in ("token_counts", "figures"):
        return "", scope, "gradients and metrics"
    if "loss" in path.split("/"):
        return "", "loss", "embedding and loss"
    if re.search(r"while", path) and re.search(r"Xla|Broadcast|Zeros|fill", last):
        return "", "stacked gradients", "gradients and metrics"
    if last == "BroadcastTo":
        return "", "stacked gradients", "gradients and metrics"
    if _EINSUM.search(path) or re.search(r"(?i)gather|embed|onehot|one_hot|segment", path):
        return "", "embedding and logits", "embedding and loss"
    if re.search(r"AddN|gradient_norm|Sqrt|Square|^Sum", path):
        return "", "gradient norm", "gradients and metrics"
    stack = _STACK.search(path)
    return (stack[1] if stack else ""), last, "other"
