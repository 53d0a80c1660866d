"""Results that the forward pass keeps, so that the backward pass does not compute them again.

A stack that recomputes keeps the input of each part, and computes the rest of the part again (see
`stack`). Some results take much time and little memory, such as what an expert receives: behind it are a
product and an all-to-all. A layer shows each such result: `x = mode.keep("experts", x, "EGM")`.

    forward     keep(kind, x, letters) is x, and x is written down.
    backward    keep(kind, x, letters) is the value that was written down, and its gradient goes to x.

Both passes show the same results in the same order. In the backward pass nobody reads the value of x, so
the compiler removes what only served to compute it.
"""

from collections.abc import Callable, Sequence

from gshard_nmt.model.lazy_tensorflow import tf

KINDS = ("inputs", "experts", "attention", "projections")
"""The values of `Model.remat_keeps`. Each keeps what the one before it keeps, and more."""

Keep = Callable[[str, "tf.Tensor", str], "tf.Tensor"]
"""Takes one of KINDS, a result and its letters, and returns the result: computed now, or kept."""


def not_kept(kind: str, x: "tf.Tensor", letters: str) -> "tf.Tensor":
    del kind, letters
    return x


def recorder(keeps: str) -> tuple[Keep, list[tuple["tf.Tensor", str]]]:
    """Returns a `Keep` for the forward pass, and the list of results and letters that it fills."""
    results: list[tuple[tf.Tensor, str]] = []

    def keep(kind: str, x: "tf.Tensor", letters: str) -> "tf.Tensor":
        if KINDS.index(kind) <= KINDS.index(keeps):
            results.append((x, letters))
        return x

    return keep, results


def reader(keeps: str, results: Sequence["tf.Tensor"]) -> Keep:
    """Returns a `Keep` for the backward pass, which replaces what was kept."""
    kept = iter(results)

    def keep(kind: str, x: "tf.Tensor", letters: str) -> "tf.Tensor":
        del letters
        return _with_gradient_of(next(kept), x) if KINDS.index(kind) <= KINDS.index(keeps) else x

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
