"""Results that the forward pass keeps, so that the backward pass does not compute them again.

A stack that recomputes keeps the input of each part, and computes the rest of the part again (see
`stack`). Some results take much time and little memory, such as what an expert receives: behind it are a
product and an all-to-all. A layer shows each such result: `x = mode.keep("inputs", x)`.

    forward     keep(name, x) is x, and x is written down.
    backward    keep(name, x) is the value that was written down, and its gradient goes to x.

In the backward pass nobody reads the value of x, so the compiler removes what only served to compute it.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence

from gshard_nmt.model.lazy_tensorflow import tf

Keep = Callable[[str, "tf.Tensor"], "tf.Tensor"]
"""Takes the name of a result and the result, and returns it: computed now, or kept."""


@dataclasses.dataclass(frozen=True)
class Result:
    """The declaration of a result that can be kept."""

    shape: Sequence[int]  # the size of each dimension
    letters: str  # one letter for each dimension
    # "activation" for a result in the dtype of the activations, "float32" for one that is at least
    # that precise, or "int32"
    kind: str = "activation"

    def dtype(self, activations: "tf.DType") -> "tf.DType":
        if self.kind == "int32":
            return tf.int32
        is_precise = self.kind == "activation" or activations == tf.float64
        return activations if is_precise else tf.float32


def not_kept(name: str, x: "tf.Tensor") -> "tf.Tensor":
    del name
    return x


def recorder(kept: Collection[str]) -> tuple[Keep, dict[str, "tf.Tensor"]]:
    """Returns a `Keep` for the forward pass, and the dict into which it writes the results `kept`."""
    results: dict[str, tf.Tensor] = {}

    def keep(name: str, x: "tf.Tensor") -> "tf.Tensor":
        if name in kept:
            results[name] = x
        return x

    return keep, results


def reader(results: Mapping[str, "tf.Tensor"]) -> Keep:
    """Returns a `Keep` for the backward pass, which replaces what has a value in `results`."""

    def keep(name: str, x: "tf.Tensor") -> "tf.Tensor":
        return _with_gradient_of(results[name], x) if name in results else x

    return keep


def _with_gradient_of(kept: "tf.Tensor", x: "tf.Tensor") -> "tf.Tensor":
    """Returns the value `kept`, whose gradient is passed on to x."""
    if not x.dtype.is_floating:
        return kept

    @tf.custom_gradient
    def replaced(x: "tf.Tensor"):
        del x
        return tf.identity(kept), lambda dy: dy

    return replaced(x)
