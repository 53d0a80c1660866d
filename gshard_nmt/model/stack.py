"""Applies a stack of equal blocks: unrolled or as a loop, with or without recomputation.

The parameters of a block have a leading dimension R, one index for each repeat of the block. If the
stack is unrolled, the program grows with the depth. If the stack is a loop, the program holds one block
forward and one block backward for any depth (GSPMD section 3.3: identical layers).

TensorFlow's own gradient of a loop keeps every intermediate result of every repeat. The loop here keeps
only the input of each part of the block, and the results that the part keeps (see `kept_results`). The
backward pass computes the rest again.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gshard_nmt.model.kept_results import Keep, not_kept, reader, recorder
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.products import barrier
from gshard_nmt.spmd.sharding import annotate

Values = Mapping[str, "tf.Tensor"]
Totals = dict[str, "tf.Tensor"]
"""Maps the name of a quantity, for example "aux_loss", to its sum over the repeats."""


SUMS = "sums"
"""The beginning of the names of the sums of gradients that are beside the parameters; see `scanned`."""


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The shape of a total, or of what a part saves, and its letters if it is split over devices."""

    shape: Sequence[int]
    letters: str = ""
    dtype: Any = "float32"

    def stacked(self, sizes: Sequence[int], letters: str) -> "Declaration":
        """Returns the declaration of several such arrays, with leading dimensions of these letters."""
        own_letters = self.letters or "_" * len(self.shape)
        return Declaration((*sizes, *self.shape), letters + own_letters, self.dtype)

    def zeros(self) -> "tf.Tensor":
        return self.annotated(run_time_zeros(self.shape, self.dtype))

    def annotated(self, x: "tf.Tensor") -> "tf.Tensor":
        return annotate(x, self.letters) if self.letters else x


Index = Any
"""The number of a repeat: an int if the stack is unrolled, int32[] in a loop."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a block. If the stack recomputes, it saves the input of each part and what it keeps."""

    names: Sequence[str]  # the names of the parameters that the part uses
    # (values, x, shared, repeat, keep) -> (x, totals), which computes the part on x[B, L, M] from
    # the parameters of one repeat and the tensors that all repeats share. It shows its results to `keep`.
    apply: Callable[
        [Values, "tf.Tensor", Sequence["tf.Tensor"], Index, Keep], tuple["tf.Tensor", Totals]
    ]
    # the names of the parameters that every use casts to the dtype of x
    low_precision: Collection[str] = ()
    keeps: str = "inputs"  # which results are kept, one of `kept_results.KINDS`

    def declare_saved(
        self, stacked: Values, x: "tf.Tensor", shared: Sequence["tf.Tensor"]
    ) -> list[Declaration]:
        """Declares the input, and the results that are kept, of one repeat of the part."""
        saved = [Declaration(x.shape.as_list(), "BLM", x.dtype)]
        if self.keeps == "inputs":
            return saved
        keep, results = recorder(self.keeps)
        with tf.__internal__.FuncGraph("shapes").as_default():  # only for the shapes
            repeat = tf.zeros([], tf.int32)
            self.apply(self.values_at(stacked, repeat, x.dtype), x, shared, repeat, keep)
        return saved + [Declaration(y.shape.as_list(), letters, y.dtype) for y, letters in results]

    def values_at(self, stacked: Values, repeat: "tf.Tensor", dtype) -> dict[str, "tf.Tensor"]:
        """Returns the parameters of one repeat, int32[], and casts the low_precision ones to `dtype`."""
        values = {name: read_at(stacked[name], repeat) for name in self.names}
        return {n: tf.cast(v, dtype) if n in self.low_precision else v for n, v in values.items()}

    def recompute_gradients(
        self,
        values: Values,
        saved: Sequence["tf.Tensor"],
        shared: Sequence["tf.Tensor"],
        repeat: Index,
        dy: "tf.Tensor",
        d_totals: Totals,
    ) -> tuple["tf.Tensor", list, dict[str, "tf.Tensor"]]:
        """Computes the part again and returns the gradients of its input, of shared and of values.

        `saved` is the input and the kept results, as `declare_saved` declares them. If the part does not
        use a shared tensor, that tensor's gradient is None.
        """
        x, *kept = saved
        with tf.GradientTape() as tape:
            tape.watch([x, *shared, *values.values()])
            # gshard-inspect recognizes recomputation in a compiled program by this name.
            with tf.name_scope("recomputed"):
                y, totals = self.apply(values, x, shared, repeat, reader(self.keeps, kept))
        sources = [x, list(shared), dict(values)]
        seeds = [dy, *(d_totals[name] for name in totals)]
        return tape.gradient([y, *totals.values()], sources, output_gradients=seeds)


def unrolled(
    parts: Sequence[Part],
    stacked: Values,
    x: "tf.Tensor",
    shared: Sequence["tf.Tensor"],
    recompute: bool,
) -> tuple["tf.Tensor", Totals]:
    """Applies every repeat of the block in turn.

    Args:
      parts: the parts of the block, in their order.
      stacked: the parameters, with a leading dimension R.
      x: [B, L, M].
      shared: tensors that every repeat reads and that need gradients.
      recompute: whether to keep only the inputs of the parts and compute the rest again in the backward
        pass.

    Returns:
      x after the last block, and the totals.
    """
    layers = {
        name: value if isinstance(value, list) else tf.unstack(value)
        for name, value in stacked.items()
    }
    repeats = len(next(iter(layers.values())))
    totals: Totals = {}
    for repeat in range(repeats):
        for part in parts:
            values = {name: layers[name][repeat] for name in part.names}
            apply = _recomputed(part) if recompute else part.apply
            x, part_totals = apply(values, x, shared, repeat, not_kept)
            totals |= {k: v + totals[k] if k in totals else v for k, v in part_totals.items()}
    return x, totals


def _recomputed(part: Part):
    """Returns a function like `part.apply` whose gradient computes the part again from its input.

    Without the barrier XLA would see that both computations are equal, and keep the first one's results.
    """

    def apply(values: Values, x, shared: Sequence, repeat: Index, _: Keep):
        @tf.custom_gradient
        def run(x, shared, values):
            keep, results = recorder(part.keeps)
            y, totals = part.apply(values, x, shared, repeat, keep)
            kept = [result for result, _ in results]

            def gradient(dy, *d_totals):
                inputs = [x, shared, values, kept, dy]
                again = tf.nest.pack_sequence_as(inputs, barrier(tf.nest.flatten(inputs)))
                x_again, shared_again, values_again, kept_again, dy_again = again
                return part.recompute_gradients(
                    *(values_again, [x_again, *kept_again], shared_again, repeat, dy_again),
                    dict(zip(sorted(totals), d_totals, strict=True)),
                )

            return (y, totals), gradient

        return run(x, list(shared), dict(values))

    return apply


def scanned(
    parts: Sequence[Part],
    stacked: Values,
    annotate_gradient: Callable[[str, "tf.Tensor"], "tf.Tensor"],
    x: "tf.Tensor",
    shared: Sequence["tf.Tensor"],
    totals: Mapping[str, Declaration],
    sums: Mapping[str, "tf.Tensor"] = {},
) -> tuple["tf.Tensor", Totals]:
    """Applies every repeat of the block in a loop that is compiled once, with recomputation.

    For a block of two parts, a and b, the two loops do and keep the following:

        forward    x -> a -> b -> x -> a -> b -> ... -> y      one repeat is "a -> b"
        kept       x of a and x of b, for each repeat          saved: [R, B, L, M] for each part
        backward   dx <- a <- b <- dx <- a <- b <- ... <- dy   computes b and a again from their inputs
        returned   dx, and the gradients of the parameters     d_stacked: R first, like `stacked`

    Args:
      parts, stacked, x, shared: as for `unrolled`. A shared tensor is [B, T, M].
      annotate_gradient: annotates a parameter's gradient like the parameter; its arguments are the
        parameter's name and the gradient.
      totals: the declarations of the totals of the parts.
      sums: the sums of gradients in former microbatches, float32[R, ...], by the parameter's name; {} if
        there are none. The backward loop adds to them and makes no other array of gradients: the
        parameter has no gradient then, and the "gradient" of its sum is the new sum.

    Returns:
      x after the last block, and the totals.
    """
    repeats = _repeats(stacked)

    def add_total(name: str, total: "tf.Tensor", term: "tf.Tensor") -> "tf.Tensor":
        return totals[name].annotated(total + term)

    @tf.custom_gradient
    def run(x, shared, stacked, sums):
        loop = Loop(parts, stacked, shared)
        saved: Sequence[Sequence[tf.Tensor]] = [
            [
                array.stacked([repeats], "R").zeros()
                for array in part.declare_saved(loop.stacked, x, shared)
            ]
            for part in parts
        ]
        zeros = {name: total.zeros() for name, total in totals.items()}
        y, saved, values = loop.forward(x, saved, zeros, add_total)

        def gradient(dy, *d_values):  # flat, in the order of their names
            d_totals = dict(zip(sorted(totals), d_values, strict=True))
            results = _gradients_of(loop, annotate_gradient, saved, dy, d_totals, sums)
            dx, d_shared, d_stacked = results
            d_sums = {name: d_stacked.pop(name) for name in sums}
            return dx, d_shared, {name: d_stacked.get(name) for name in stacked}, d_sums

        return (y, values), gradient

    return run(x, list(shared), dict(stacked), dict(sums))


def _gradients_of(
    loop: "Loop",
    annotate_gradient: Callable[[str, "tf.Tensor"], "tf.Tensor"],
    saved: Sequence[Sequence["tf.Tensor"]],
    dy: "tf.Tensor",
    d_totals: Totals,
    sums: Values,
) -> tuple["tf.Tensor", list["tf.Tensor"], dict[str, "tf.Tensor"]]:
    """Returns the gradients of x, of `loop.shared` and of `loop.stacked`, which are added to `sums`."""
    # The loop keeps all gradients until the optimizer reads them. If a weight is cast to bfloat16 before
    # use, its gradient has bfloat16 precision, so we store it as bfloat16 and halve its memory.
    low_precision = {name for part in loop.parts for name in part.low_precision}
    start = dict(sums)
    for name, v in loop.stacked.items():
        if name not in sums:
            start[name] = run_time_zeros(v.shape, dy.dtype if name in low_precision else v.dtype)
    start = {name: annotate_gradient(name, value) for name, value in start.items()}
    d_shared = [annotate(run_time_zeros(t.shape, t.dtype), "BLM") for t in loop.shared]

    put = _add_at if sums else write_at
    dx, d_shared, d_stacked = loop.backward(
        saved, dy, d_totals, d_shared, start, lambda total, term: total + term, put
    )
    d_stacked = {
        name: tf.cast(annotate_gradient(name, d_stacked[name]), v.dtype)
        for name, v in loop.stacked.items()
    }
    return dx, d_shared, d_stacked


@dataclasses.dataclass(frozen=True)
class Loop:
    """The repeats of a block as a loop, and its gradient as a loop in reverse."""

    parts: Sequence[Part]  # the parts of the block, in order
    stacked: Values  # the parameters, with a leading dimension R
    # tensors [B, T, M] that every repeat reads and that need gradients
    shared: Sequence["tf.Tensor"]
    first: "tf.Tensor | int" = 0  # int32[], 0 at run time. Both loops count from it.

    def forward(
        self,
        x: "tf.Tensor",
        saved: Sequence[Sequence["tf.Tensor"]],
        sums: Totals,
        add_total: Callable[[str, "tf.Tensor", "tf.Tensor"], "tf.Tensor"],
    ) -> tuple["tf.Tensor", Sequence[Sequence["tf.Tensor"]], Totals]:
        """Applies the blocks to x[B, L, M].

        Args:
          saved: for each part the arrays of `Part.declare_saved`, with a leading dimension R, into which
            the loop writes.
          add_total: (name, sum, term) -> the sum with the term of a part.

        Returns:
          x after the last block, what is saved, and the sums.
        """
        repeats = _repeats(self.stacked)

        def body(repeat, x, saved, sums):
            saved, sums = [list(arrays) for arrays in saved], dict(sums)
            for i, part in enumerate(self.parts):
                input_of_part, *kept = saved[i]
                saved[i] = [write_at(input_of_part, repeat, x)]
                values = part.values_at(self.stacked, repeat, x.dtype)
                keep, results = recorder(part.keeps)
                x, part_totals = part.apply(values, x, self.shared, repeat, keep)
                for array, (result, _) in zip(kept, results, strict=True):
                    saved[i].append(write_at(array, repeat, result))
                for name, total in part_totals.items():
                    sums[name] = add_total(name, sums[name], total)
            return repeat + 1, annotate(x, "BLM"), saved, sums

        start = tf.convert_to_tensor(self.first, tf.int32)
        _, y, saved, sums = tf.while_loop(
            lambda repeat, *_: repeat < repeats,
            body,
            [start, x, [list(arrays) for arrays in saved], sums],
        )
        return y, saved, sums

    def backward(
        self,
        saved: Sequence[Sequence["tf.Tensor"]],
        dy: "tf.Tensor",
        d_totals: Totals,
        d_shared: Sequence["tf.Tensor"],
        d_stacked: Mapping[str, "tf.Tensor"],
        add: Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"],
        put: Callable[["tf.Tensor", "tf.Tensor", "tf.Tensor"], "tf.Tensor"],
    ) -> tuple["tf.Tensor", list["tf.Tensor"], dict[str, "tf.Tensor"]]:
        """Computes the blocks again, the last one first, and their gradients.

        Args:
          saved: what `forward` saved.
          dy: [B, L, M], the gradient of x after the last block.
          d_shared: the sums, before the last block, that the gradients of `shared` are added to.
          d_stacked: the same for `stacked`, [R, ...].
          add: (sum, term) -> the sum with the term of a part; for `shared`.
          put: (sum, repeat, term) -> the sum with the gradient of a parameter at sum[repeat].

        Returns:
          The gradients of x, of `shared` and of `stacked`.
        """
        repeats = _repeats(self.stacked)

        def body(index, dx, d_shared, d_stacked):
            repeat, d_stacked = repeats - 1 - index, dict(d_stacked)
            for i, part in reversed(list(enumerate(self.parts))):
                own = [read_at(array, repeat) for array in saved[i]]
                values = part.values_at(self.stacked, repeat, own[0].dtype)
                dx, terms, d_values = part.recompute_gradients(
                    values, own, self.shared, repeat, dx, d_totals
                )
                d_shared = [
                    total if term is None else add(total, term)
                    for total, term in zip(d_shared, terms, strict=True)
                ]
                for name, value in d_values.items():
                    d_stacked[name] = put(d_stacked[name], repeat, value)
            d_shared = [annotate(gradient, "BLM") for gradient in d_shared]
            return index + 1, annotate(dx, "BLM"), d_shared, d_stacked

        start = tf.convert_to_tensor(self.first, tf.int32)
        _, dx, d_shared, d_stacked = tf.while_loop(
            lambda index, *_: index < repeats, body, [start, dy, list(d_shared), dict(d_stacked)]
        )
        return dx, list(d_shared), dict(d_stacked)


def _repeats(stacked: Values) -> int:
    return next(iter(stacked.values())).shape[0]


def run_time_zeros(shape: Sequence[int], dtype: "tf.DType | str") -> "tf.Tensor":
    """Returns zeros made from a run-time zero.

    TF2XLA would build a constant on the host at its global size.
    """
    (zero,) = barrier([tf.zeros([], dtype)])
    return tf.broadcast_to(zero, shape)


def read(x: "tf.Tensor", start: "tf.Tensor", size: int, axis: int = 0) -> "tf.Tensor":
    """Returns `size` elements of one dimension of x from `start` on; start is int32[]."""
    sizes = x.shape.as_list()
    sizes[axis] = size
    if tf.executing_eagerly():
        return tf.slice(x, _starts(x, start, axis), sizes)
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_dynamic_slice(x, _starts(x, start, axis), tf.constant(sizes))


def write(x: "tf.Tensor", start: "tf.Tensor", new: "tf.Tensor", axis: int = 0) -> "tf.Tensor":
    """Returns x with `new` in one dimension from `start` on; start is int32[]."""
    if tf.executing_eagerly():
        before, _, after = tf.split(x, [start, new.shape[axis], -1], axis=axis)
        return tf.concat([before, new, after], axis=axis)
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_dynamic_update_slice(x, new, _starts(x, start, axis))


def _starts(x: "tf.Tensor", start: "tf.Tensor", axis: int) -> "tf.Tensor":
    return tf.stack([start if i == axis else tf.zeros([], tf.int32) for i in range(x.shape.rank)])


def read_at(stacked: "tf.Tensor", index: "tf.Tensor") -> "tf.Tensor":
    """Returns stacked[index]; index is int32[]."""
    return tf.reshape(read(stacked, index, 1), stacked.shape[1:])


def write_at(stacked: "tf.Tensor", index: "tf.Tensor", value: "tf.Tensor") -> "tf.Tensor":
    """Returns a copy of `stacked` in which stacked[index] is `value`; index is int32[]."""
    return write(stacked, index, value[tf.newaxis])


def _add_at(stacked: "tf.Tensor", index: "tf.Tensor", term: "tf.Tensor") -> "tf.Tensor":
    """Returns a copy of `stacked` in which stacked[index] has grown by `term`; index is int32[]."""
    # Without the barrier XLA sums over devices after the loop, and needs two more arrays of gradients.
    (term,) = barrier([tf.cast(term, stacked.dtype)])
    return write_at(stacked, index, read_at(stacked, index) + term)
