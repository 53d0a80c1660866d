"""Where an instruction of the compiled program comes from, in the model's own words.

XLA keeps the names of TensorFlow's operations through the TPU compiler, name scopes included:

    jit(call)/lowered_program/gradient_tape/decoder_3_moe_0/experts/einsum_4/Einsum_1

is the backward pass of a product in the experts of the decoder's fourth block.
"""

import dataclasses
import functools
import re

KINDS = (
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
"""Kinds of work, as in GShard Figure 8, and what that figure leaves out."""

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
    """Where something in the compiled program comes from.

    Attributes:
      layer: "decoder 3 moe_0" (stack, repeat of the block, sub-layer), "decoder moe_0" inside a loop
        over the blocks, "" outside the layers.
      part: the name scope or the operation within it, such as "dispatch" or "Softmax".
      kind: one of KINDS.
      scopes: the name scopes within the layer, the weight's that is used among them.
      direction: one of DIRECTIONS: "backward" where it belongs to the gradient, "recomputed" where
        the backward pass computes the forward pass again.
    """

    layer: str
    part: str
    kind: str
    scopes: tuple[str, ...] = ()
    direction: str = "forward"

    @property
    def backward(self) -> bool:
        """Whether it belongs to the gradient."""
        return self.direction == "backward"

    @property
    def where(self) -> str:
        """In a few words: "decoder 3 moe_0, dispatch (backward)"."""
        place = ", ".join(filter(None, (self.layer, self.part)))
        return (place or self.kind) + (
            "" if self.direction == "forward" else f" ({self.direction})"
        )


UNKNOWN = Origin("", "", "other")


@functools.lru_cache(maxsize=65536)
def origin_of(op_name: str) -> Origin:
    """The origin that an operation's name tells."""
    # An operation that XLA made of several keeps all their names, the most telling one first.
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
    """Without the numbers that make names unique."""
    return tuple(re.sub(r"_\d+$", "", part) for part in parts)


def _direction(path: str) -> str:
    # The gradient of a gather has no name of its own: it is the sum over segments.
    if any(mark in path for mark in ("gradient_tape", "gradients/", "UnsortedSegmentSum")):
        return "backward"
    # Nor has that of a product in true float32 a scope, which its forward pass has.
    if "XlaDot" in path and not _LAYER.search(path):
        return "backward"
    return "recomputed" if "recomputed" in path else "forward"


def _part(inside: list[str]) -> str:
    """The innermost named scope, or the operation where there is none."""
    scopes = [part for part in inside[:-1] if part in _SCOPES]
    if scopes or not inside:
        return scopes[-1] if scopes else ""
    return _TRANSPOSES.get(inside[0]) or _names(inside[:1])[0]


_TRANSPOSES = {"transpose": "dispatch", "transpose_1": "combine"}
"""The two resharding transposes of an MoE layer, in their order."""


_SCOPES = {
    "gating": "gating",
    "dispatch": "dispatch and combine",
    "combine": "dispatch and combine",
    "experts": "experts",
}
"""Name scopes inside an MoE layer -> kind of work, of what is no product with a gate."""


def _kind(sublayer: str, inside: list[str]) -> str:
    if sublayer.endswith("attention", 0, sublayer.rfind("_")):
        return "attention"
    if sublayer.startswith("feed_forward"):
        return "feed-forward"
    product = any(_EINSUM.search(part) for part in inside)
    scope = next((part for part in inside if part in _SCOPES), "")
    if product and scope and scope != "experts":
        # The projection to the gates' logits, and the products with the one-hot tensors GSEC.
        return "gate einsums"
    if scope:
        return _SCOPES[scope]
    return "experts" if product else "gating"


def _outside(path: str) -> tuple[str, str, str]:
    """Layer, part and kind of what is in no layer."""
    last = re.sub(r"_\d+$", "", path.rsplit("/", 1)[-1])
    if "adafactor" in path:
        return "", "adafactor", "optimizer"
    if "loss" in path.split("/"):
        return "", "loss", "embedding and loss"
    if "XlaDot" in path:
        # A product in true float32 that autodiff took out of its scope: only gates are asked for so.
        return "", "router", "gate einsums"
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
