"""A stack of equal blocks, applied one after another: unrolled or as a loop, remembering or not.

The parameters of a block are kept once with a leading dimension R. Unrolled, the program grows with
the depth; as a loop it holds one block forward and one backward, whatever the depth (GSPMD section
3.3: identical layers). TensorFlow's own gradient of a loop keeps every intermediate result of every
repeat; the loop here keeps the inputs of each part of the block and computes the rest again.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.spmd.sharding import annotate

Values = Mapping[str, "tf.Tensor"]
Totals = dict[str, "tf.Tensor"]
"""Sums over the repeats, by name; for instance of the auxiliary losses."""

Index = Any
"""Which repeat: an int where the stack is unrolled, int32[] in a loop."""


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a block that is remembered by its input alone where anything is recomputed.

    Attributes:
      names: of the parameters that it uses.
      apply: (values, x, shared, repeat) -> (x, totals): the part on x[B, L, M], with the parameters
        of one repeat and the tensors that all repeats share; repeat is an int or int32[].
      low_precision: which of the names every use casts to the dtype of x.
    """

    names: Sequence[str]
    apply: Callable[[Values, "tf.Tensor", Sequence["tf.Tensor"], Index], tuple["tf.Tensor", Totals]]
    low_precision: Collection[str] = ()

    def values_at(self, stacked: Values, repeat: "tf.Tensor", dtype) -> dict[str, "tf.Tensor"]:
        """The parameters of one repeat, int32[], the low_precision ones in a dtype."""
        read = {name: _read(stacked[name], repeat) for name in self.names}
        return {n: tf.cast(v, dtype) if n in self.low_precision else v for n, v in read.items()}

    def pull_back(
        self, values: Values, x, shared: Sequence, repeat: Index, dy, d_totals: Totals
    ) -> tuple["tf.Tensor", list, dict[str, "tf.Tensor"]]:
        """Computes the part again and gives the gradients of x, shared and values.

        A shared tensor that the part does not use has the gradient None.
        """
        with tf.GradientTape() as tape:
            tape.watch([x, *shared, *values.values()])
            # gshard-inspect tells it by this name in the compiled program.
            with tf.name_scope("recomputed"):
                y, totals = self.apply(values, x, shared, repeat)
        targets, seeds = [y], [dy]
        for name, total in totals.items():
            targets.append(total)
            seeds.append(d_totals[name])
        sources = [x, list(shared), dict(values)]
        return tape.gradient(targets, sources, output_gradients=seeds)


def unrolled(
    parts: Sequence[Part],
    stacked: Values,
    x: "tf.Tensor",
    shared: Sequence["tf.Tensor"],
    recompute: bool,
) -> tuple["tf.Tensor", Totals]:
    """Applies every repeat of the block in turn.

    Args:
      parts: of the block, in order.
      stacked: parameters with a leading dimension R.
      x: [B, L, M].
      shared: what every repeat reads, with gradients.
      recompute: keep only the inputs of the parts for the backward pass.

    Returns:
      x after the last block, and the totals.
    """
    repeats = _repeats(stacked)
    layers = {name: tf.unstack(value) for name, value in stacked.items()}
    totals: Totals = {}
    for repeat in range(repeats):
        for part in parts:
            values = {name: layers[name][repeat] for name in part.names}
            apply = _recomputed(part) if recompute else part.apply
            x, found = apply(values, x, shared, repeat)
            totals = {
                **totals,
                **{k: v + totals[k] if k in totals else v for k, v in found.items()},
            }
    return x, totals


def _recomputed(part: Part):
    """The part, whose gradient computes it again from its input.

    Without the barrier XLA would find both computations equal and keep the first.
    """

    def apply(values: Values, x, shared: Sequence, repeat: Index):
        names = sorted(values)
        totals_names: list[str] = []
        sizes = [1, len(shared), len(names)]

        @tf.custom_gradient
        def run(*arguments):
            x, shared, flat = _cut(arguments, sizes)
            y, totals = part.apply(dict(zip(names, flat, strict=True)), x[0], shared, repeat)
            totals_names[:] = sorted(totals)

            def gradient(*seeds):
                held = _barrier([*arguments, *seeds])
                x, shared, flat, dy, d_totals = _cut(held, [*sizes, 1, len(totals_names)])
                dx, d_shared, d_values = part.pull_back(
                    dict(zip(names, flat, strict=True)),
                    x[0],
                    shared,
                    repeat,
                    dy[0],
                    dict(zip(totals_names, d_totals, strict=True)),
                )
                return (dx, *d_shared, *[d_values[name] for name in names])

            return (y, *[totals[name] for name in totals_names]), gradient

        y, *totals = run(x, *shared, *[values[name] for name in names])
        return y, dict(zip(totals_names, totals, strict=True))

    return apply


def scanned(
    parts: Sequence[Part],
    stacked: Values,
    laid_out: Callable[[str, "tf.Tensor"], "tf.Tensor"],
    x: "tf.Tensor",
    shared: Sequence["tf.Tensor"],
    totals: Mapping[str, Sequence[int]],
) -> tuple["tf.Tensor", Totals]:
    """As `unrolled` with recomputation, in a loop that is compiled once.

    Args:
      parts: of the block, in order.
      stacked: parameters with a leading dimension R.
      laid_out: annotates a gradient, by the name of its parameter, as the parameter is.
      x: [B, L, M].
      shared: what every repeat reads, with gradients, [B, T, M] each.
      totals: shapes of the totals of the whole block, float32.

    Returns:
      x after the last block, and the totals.
    """
    if tf.executing_eagerly():  # loops over XLA's slices are for compiled programs only
        return unrolled(parts, stacked, x, shared, recompute=True)
    names, total_names, repeats = sorted(stacked), sorted(totals), _repeats(stacked)
    sizes = [1, len(shared), len(names)]

    @tf.custom_gradient
    def run(*arguments):
        (x,), shared, flat = _cut(arguments, sizes)
        stacked = dict(zip(names, flat, strict=True))
        kept = [annotate(_zeros([repeats, *x.shape], x.dtype), "RBLM") for _ in parts]
        sums = [_zeros(totals[name], tf.float32) for name in total_names]

        def forward(repeat, x, kept, sums):
            kept, found = list(kept), dict(zip(total_names, sums, strict=True))
            for i, part in enumerate(parts):
                kept[i] = _write(kept[i], repeat, x)
                x, more = part.apply(part.values_at(stacked, repeat, x.dtype), x, shared, repeat)
                found |= {name: found[name] + more[name] for name in more}
            return repeat + 1, annotate(x, "BLM"), kept, [found[name] for name in total_names]

        start = tf.zeros([], tf.int32)
        _, y, kept, sums = tf.while_loop(
            lambda repeat, *_: repeat < repeats, forward, [start, x, kept, sums]
        )

        def gradient(dy, *d_sums):
            d_totals = dict(zip(total_names, d_sums, strict=True))
            d_shared = [annotate(_zeros(one.shape, one.dtype), "BLM") for one in shared]
            # All gradients are kept until the optimiser has them: of a weight that is used rounded to
            # bfloat16 its gradient is as round, and takes half the memory so.
            low_precision = {name for part in parts for name in part.low_precision}
            d_stacked = {
                name: laid_out(
                    name, _zeros(v.shape, dy.dtype if name in low_precision else v.dtype)
                )
                for name, v in stacked.items()
            }

            def backward(after, dx, d_shared, d_flat):
                repeat = after - 1
                d_stacked = dict(zip(names, d_flat, strict=True))
                for part, inputs in reversed(list(zip(parts, kept, strict=True))):
                    x = _read(inputs, repeat)
                    values = part.values_at(stacked, repeat, x.dtype)
                    dx, more, d_values = part.pull_back(values, x, shared, repeat, dx, d_totals)
                    d_shared = [
                        one if extra is None else one + extra
                        for one, extra in zip(d_shared, more, strict=True)
                    ]
                    for name, value in d_values.items():
                        d_stacked[name] = _write(d_stacked[name], repeat, value)
                d_shared = [annotate(one, "BLM") for one in d_shared]
                return repeat, annotate(dx, "BLM"), d_shared, [d_stacked[n] for n in names]

            start = [tf.constant(repeats), dy, d_shared, [d_stacked[name] for name in names]]
            _, dx, d_shared, d_flat = tf.while_loop(lambda after, *_: after > 0, backward, start)
            d_flat = [
                tf.cast(laid_out(name, d), stacked[name].dtype)
                for name, d in zip(names, d_flat, strict=True)
            ]
            return (dx, *d_shared, *d_flat)

        return (y, *sums), gradient

    y, *sums = run(x, *shared, *[stacked[name] for name in names])
    return y, dict(zip(total_names, sums, strict=True))


def _repeats(stacked: Values) -> int:
    return next(iter(stacked.values())).shape[0]


def _cut(flat: Sequence, sizes: Sequence[int]) -> list[list]:
    """Consecutive runs of a list, of these lengths."""
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [list(flat[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _barrier(tensors: Sequence["tf.Tensor"]) -> Sequence["tf.Tensor"]:
    """The same tensors, which XLA takes for new ones."""
    if tf.executing_eagerly():
        return tensors
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_optimization_barrier(list(tensors))


def _zeros(shape: Sequence[int], dtype: "tf.DType") -> "tf.Tensor":
    """Zeros from a run-time zero: TF2XLA would build a constant on the host, at its global size."""
    (zero,) = _barrier([tf.zeros([], dtype)])
    return tf.broadcast_to(zero, shape)


def _read(stacked: "tf.Tensor", index: "tf.Tensor") -> "tf.Tensor":
    """stacked[index] for int32[]."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    shape = stacked.shape.as_list()
    starts = tf.stack([index, *[tf.zeros([], tf.int32)] * (len(shape) - 1)])
    return tf.reshape(
        gen_xla_ops.xla_dynamic_slice(stacked, starts, tf.constant([1, *shape[1:]])), shape[1:]
    )


def _write(stacked: "tf.Tensor", index: "tf.Tensor", value: "tf.Tensor") -> "tf.Tensor":
    """The same with stacked[index] = value."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    starts = tf.stack([index, *[tf.zeros([], tf.int32)] * (stacked.shape.rank - 1)])
    return gen_xla_ops.xla_dynamic_update_slice(stacked, value[tf.newaxis], starts)
