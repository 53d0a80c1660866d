"""A stack of equal blocks as a pipeline: its stages work on different microbatches (GSPMD section 3.3).

All stages are one tensor. The state [P, b, L, M] has the microbatch of each of the P stages, and a mesh
axis splits P. One iteration is:

(1) A new microbatch enters at stage 0. A stage without a microbatch, a bubble, gets zeros.
(2) Each stage applies its blocks.
(3) The state moves on by one stage. This is a rotation, which XLA makes a collective-permute.

Only step (2) is manual along the stage axis. Its code sees the microbatch and the weights of one stage.
So a block knows nothing of stages, and the compiler partitions it along all other axes (section 3.4).
The other inputs of a stage, such as masks and the encoder's output, do not travel. Every stage reads them
at the number of its microbatch.

A stage applies its blocks in a loop that is compiled once. For each iteration the pipeline keeps what
the parts of these blocks save. The backward pass is the same in reverse, and recomputes each part.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.parameters import scoped, within
from gshard_nmt.model.pipeline_schedule import Schedule, Work
from gshard_nmt.model.stack import (
    Declaration,
    Loop,
    Part,
    Totals,
    Values,
    read_at,
    run_time_zeros,
    write_at,
)
from gshard_nmt.model.stages import (
    Lettered,
    Tensors,
    annotate_for_stages,
    if_valid,
    on_stages,
    rotated,
    stage_numbers,
    where_stage,
)
from gshard_nmt.spmd.sharding import annotate, annotate_gradient


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A stack of R blocks that runs as a pipeline of P stages, for n microbatches."""

    schedule: Schedule  # what each stage does in each iteration
    # returns the parts of a block for one microbatch. Its argument has the microbatch's entry of
    # each tensor of `side`.
    parts_of: Callable[[Tensors], Sequence[Part]]
    side: Mapping[str, Lettered]  # inputs of every block that need no gradient, [n, ...]
    letters: Mapping[str, str]  # the letters of each parameter of a block, without R
    totals: Mapping[str, Declaration]  # the totals of the whole stack for one microbatch
    saved: Sequence[Sequence[Declaration]]  # what each part of a block saves of one microbatch
    scope: str  # the beginning of the names of the parameters in the model, for Mesh.overrides

    def run(
        self, stacked: Values, x: "tf.Tensor", shared: Sequence["tf.Tensor"]
    ) -> tuple["tf.Tensor", Totals]:
        """Applies all blocks to all microbatches.

        Args:
          stacked: the parameters, with a leading dimension R.
          x: [n, b, L, M].
          shared: tensors [n, b, T, M] that every block reads and that need gradients.

        Returns:
          x after the last block, and the totals of each microbatch, with a leading dimension n.
        """

        @tf.custom_gradient
        def run(x, shared, stacked):
            y, saved, sums = self._forward(stacked, x, shared)

            def gradient(dy, *d_sums):  # flat, in the order of their names
                d_totals = dict(zip(sorted(sums), d_sums, strict=True))
                return self._backward(stacked, x, shared, saved, dy, d_totals)

            return (y, sums), gradient

        return run(x, list(shared), dict(stacked))

    def _forward(
        self, stacked: Values, x: "tf.Tensor", shared: Sequence["tf.Tensor"]
    ) -> tuple["tf.Tensor", Tensors, Totals]:
        """Returns x after the last block, what the parts saved, and the totals.

        A saved array is [iterations, P, blocks of a visit, ...].
        """
        stages, iterations = self.schedule.stages, self.schedule.iterations
        state = annotate(run_time_zeros([stages, *x.shape[1:]], x.dtype), "PBLM")
        outputs = run_time_zeros([x.shape[0], *state.shape], x.dtype)
        weights, every = self._weights(stacked), self._every(shared)
        blocks = next(iter(stacked.values())).shape[0] // (self.schedule.visits * stages)
        saved = {
            name: array.stacked([iterations, stages, blocks], "_P_").zeros()
            for name, array in self._declared_saved().items()
        }
        sums = {name: total.zeros() for name, total in self._declared_sums().items()}

        def stage(carried: Tensors, own: Tensors, every: Tensors) -> Tensors:
            m, totals = own["microbatch"], within(carried, "totals")
            y, saved, sums = self._loop(own, every).forward(
                carried["x"],
                self._by_part(carried),
                {name: read_at(total, m) for name, total in totals.items()},
                lambda _, total, term: total + if_valid(own, term),
            )
            return {
                "x": y,
                **dict(zip(self._declared_saved(), itertools.chain(*saved), strict=True)),
                **{f"totals/{k}": write_at(total, m, sums[k]) for k, total in totals.items()},
            }

        def body(iteration, state, outputs, saved, sums):
            work = self._work(iteration)
            first = self._legal(self.schedule.work(iteration, 0))
            state = where_stage(self._enters(work), read_at(x, first.microbatch)[tf.newaxis], state)
            entered = annotate(where_stage(work.is_valid, state, 0), "PBLM")
            carried = {"x": Lettered(entered, "PBLM")}
            carried |= self._at_iteration(saved, iteration)
            for name, total in self._declared_sums().items():
                carried[f"totals/{name}"] = Lettered(sums[name], total.letters)
            results = on_stages(stage, carried, {**weights, **_numbers(work)}, every)
            results = {name: carried[name].split(r) for name, r in results.items()}
            state = annotate(rotated(results["x"], 1), "PBLM")
            # The last write of each microbatch is that of its last visit.
            last = self._legal(self.schedule.work(iteration, stages - 1))
            outputs = annotate(write_at(outputs, last.microbatch, state), "_PBLM")
            saved = {
                name: annotate(
                    write_at(saved[name], iteration, results[name]), "_P_" + array.letters
                )
                for name, array in self._declared_saved().items()
            }
            return iteration + 1, state, outputs, saved, within(results, "totals")

        start = [tf.zeros([], tf.int32), state, annotate(outputs, "_PBLM"), saved, sums]
        _, _, outputs, saved, sums = tf.while_loop(lambda t, *_: t < iterations, body, start)
        sums = {name: tf.reduce_sum(total, axis=0) for name, total in sums.items()}
        return self._of_first_stage(outputs), saved, sums

    def _backward(
        self,
        stacked: Values,
        x: "tf.Tensor",
        shared: Sequence["tf.Tensor"],
        saved: Tensors,
        dy: "tf.Tensor",
        d_totals: Totals,
    ) -> tuple["tf.Tensor", list["tf.Tensor"], Tensors]:
        """Returns the gradients of x, of `shared` and of `stacked`."""
        stages = self.schedule.stages
        dy = annotate_for_stages(dy, "_BLM")
        weights, every = self._weights(stacked), self._every(shared)
        for name, d_total in d_totals.items():
            letters = self._declared_sums()[name].letters.removeprefix("P")
            every[f"d_totals/{name}"] = Lettered(d_total, letters)
        sums = {
            name: dataclasses.replace(
                t, value=t.split(run_time_zeros(t.value.shape, t.value.dtype))
            )
            for name, t in weights.items()
        }
        for i, tensor in enumerate(shared):
            zeros = run_time_zeros([stages, *tensor.shape], tensor.dtype)
            sums[f"shared/{i}"] = Lettered(annotate(zeros, "P_BLM"), "P_BLM")

        def stage(carried: Tensors, own: Tensors, every: Tensors) -> Tensors:
            m, visit = own["microbatch"], own["visit"]
            d_shared, d_weights = within(carried, "shared"), within(carried, "weights")

            def add(total: "tf.Tensor", term: "tf.Tensor") -> "tf.Tensor":
                return total + if_valid(own, tf.cast(term, total.dtype))

            dx, sums_of_shared, sums_of_weights = self._loop(own, every).backward(
                self._by_part(own),
                carried["x"],
                {k: if_valid(own, read_at(d, m)) for k, d in within(every, "d_totals").items()},
                [read_at(total, m) for total in d_shared.values()],
                {name: read_at(total, visit) for name, total in d_weights.items()},
                add,
                lambda total, block, term: write_at(total, block, add(read_at(total, block), term)),
            )
            results = {"x": dx}
            for (name, d), total in zip(d_shared.items(), sums_of_shared, strict=True):
                results[f"shared/{name}"] = write_at(d, m, total)
            for name, d in d_weights.items():
                results[f"weights/{name}"] = write_at(d, visit, sums_of_weights[name])
            return results

        def body(after, d_state, d_entered, sums_so_far):
            iteration = after - 1
            work = self._work(iteration)
            d_state = self._with_leaving(d_state, dy, iteration)
            d_result = where_stage(work.is_valid, rotated(d_state, -1), 0)
            own = {**weights, **_numbers(work), **self._at_iteration(saved, iteration)}
            carried = {n: dataclasses.replace(t, value=sums_so_far[n]) for n, t in sums.items()}
            carried["x"] = Lettered(annotate(d_result, "PBLM"), "PBLM")
            results = on_stages(stage, carried, own, every)
            results = {name: carried[name].split(r) for name, r in results.items()}
            dx = results.pop("x")
            # The last write of each microbatch is that of the iteration in which it entered.
            first = self._legal(self.schedule.work(iteration, 0))
            d_entered = annotate(write_at(d_entered, first.microbatch, dx), "_PBLM")
            d_state = where_stage(work.is_valid & ~self._enters(work), dx, 0)
            return iteration, annotate(d_state, "PBLM"), d_entered, results

        d_state = annotate(run_time_zeros([stages, *x.shape[1:]], x.dtype), "PBLM")
        d_entered = annotate(run_time_zeros([x.shape[0], *d_state.shape], x.dtype), "_PBLM")
        start = [tf.constant(self.schedule.iterations), d_state, d_entered]
        values = {name: t.value for name, t in sums.items()}
        _, _, d_entered, values = tf.while_loop(lambda after, *_: after > 0, body, [*start, values])
        d_shared = [
            annotate_for_stages(tf.reduce_sum(values[f"shared/{i}"], axis=0), "_BLM")
            for i in range(len(shared))
        ]
        d_stacked = {n: self._stacked(n, v) for n, v in within(values, "weights").items()}
        return self._of_first_stage(d_entered), d_shared, d_stacked

    def _loop(self, own: Tensors, every: Tensors) -> Loop:
        """Returns the loop over the blocks of a visit."""
        side = {name: read_at(every[f"side/{name}"], own["microbatch"]) for name in self.side}
        values = {n: read_at(value, own["visit"]) for n, value in within(own, "weights").items()}
        blocks = next(iter(values.values())).shape[0]
        first = (own["visit"] * self.schedule.stages + own["stage"]) * blocks
        parts = [_numbered_from(first, part) for part in self.parts_of(side)]
        # The loop counts from a zero of the stage.
        shared = [read_at(tensor, own["microbatch"]) for tensor in within(every, "shared").values()]
        return Loop(parts, values, shared, tf.minimum(own["visit"], 0))

    def _declared_saved(self) -> dict[str, Declaration]:
        return {
            f"inputs/{i:03}/{j:03}": array
            for i, arrays in enumerate(self.saved)
            for j, array in enumerate(arrays)
        }

    def _by_part(self, tensors: Tensors) -> list[list["tf.Tensor"]]:
        """Returns the saved tensors of each part."""
        saved = iter([tensors[name] for name in self._declared_saved()])
        return [list(itertools.islice(saved, len(arrays))) for arrays in self.saved]

    def _at_iteration(self, saved: Tensors, iteration: "tf.Tensor") -> dict[str, Lettered]:
        """Returns what the parts saved in an iteration, [P, blocks of a visit, ...]."""
        at_iteration = {}
        for name, array in self._declared_saved().items():
            letters = "P_" + array.letters
            at_iteration[name] = Lettered(
                annotate(read_at(saved[name], iteration), letters), letters
            )
        return at_iteration

    def _weights(self, stacked: Values) -> dict[str, Lettered]:
        """Returns the parameters of each stage, [P, visits, blocks of a visit, ...]."""
        stages, visits = self.schedule.stages, self.schedule.visits
        weights = {}
        for name, value in stacked.items():
            repeats, *shape = value.shape.as_list()
            # Shape: [R, ...] -> [visits, P, blocks, ...] -> [P, visits, blocks, ...]
            value = tf.reshape(value, [visits, stages, repeats // (visits * stages), *shape])
            value = tf.transpose(value, [1, 0, *range(2, value.shape.rank)])
            tensor = Lettered(value, "P__" + self.letters[name], f"{self.scope}/{name}")
            weights[f"weights/{name}"] = dataclasses.replace(tensor, value=tensor.split(value))
        return weights

    def _stacked(self, name: str, gradient: "tf.Tensor") -> "tf.Tensor":
        """Returns the gradient [R, ...] of a parameter, the inverse of `_weights`."""
        stages, visits, blocks, *shape = gradient.shape.as_list()
        gradient = tf.transpose(gradient, [1, 0, *range(2, gradient.shape.rank)])
        gradient = tf.reshape(gradient, [visits * stages * blocks, *shape])
        return annotate_gradient(gradient, "R" + self.letters[name], f"{self.scope}/{name}")

    def _every(self, shared: Sequence["tf.Tensor"]) -> dict[str, Lettered]:
        together = {str(i): Lettered(tensor, "_BLM") for i, tensor in enumerate(shared)}
        return scoped("side", self.side) | scoped("shared", together)

    def _declared_sums(self) -> dict[str, Declaration]:
        """Declares the totals of all microbatches on each stage."""
        sizes = [self.schedule.stages, self.schedule.microbatches]
        return {name: self.totals[name].stacked(sizes, "P_") for name in sorted(self.totals)}

    def _work(self, iteration: "tf.Tensor") -> Work:
        """Returns the work of all stages, int32[P] and bool[P]; the numbers are legal in a bubble too."""
        return self._legal(self.schedule.work(iteration, stage_numbers(self.schedule.stages)))

    def _legal(self, work: Work) -> Work:
        last = self.schedule.microbatches - 1
        return dataclasses.replace(work, microbatch=tf.clip_by_value(work.microbatch, 0, last))

    def _enters(self, work: Work) -> "tf.Tensor":
        """Returns bool[P], whether a microbatch enters the pipeline at the stage."""
        return work.is_valid & (work.visit == 0) & self._is_first()

    def _is_first(self) -> "tf.Tensor":
        return stage_numbers(self.schedule.stages) == 0

    def _with_leaving(
        self, d_state: "tf.Tensor", dy: "tf.Tensor", iteration: "tf.Tensor"
    ) -> "tf.Tensor":
        """Adds the gradient of the microbatch that leaves after this iteration, if there is one.

        After the rotation this microbatch is in the state of stage 0, which does not use it.
        """
        last = self._legal(self.schedule.work(iteration, self.schedule.stages - 1))
        leaves = last.is_valid & (last.visit == self.schedule.visits - 1)
        leaving = read_at(dy, last.microbatch)[tf.newaxis]
        return annotate(where_stage(leaves & self._is_first(), leaving, d_state), "PBLM")

    def _of_first_stage(self, states: "tf.Tensor") -> "tf.Tensor":
        """Returns the entry of stage 0 of each of n states [n, P, b, L, M]."""
        states = annotate(states, "_PBLM")
        is_first = tf.reshape(self._is_first(), [1, -1, 1, 1, 1])
        # The sum is an all-reduce along the stage axis. A slice would gather all states first.
        of_first = tf.reduce_sum(tf.where(is_first, states, tf.zeros([], states.dtype)), axis=1)
        return annotate_for_stages(of_first, "_BLM")


def _numbers(work: Work) -> dict[str, Lettered]:
    """Returns the numbers that each stage sees of its own."""
    return {
        "microbatch": Lettered(work.microbatch, "P"),
        "visit": Lettered(work.visit, "P"),
        "is_valid": Lettered(work.is_valid, "P"),
        "stage": Lettered(stage_numbers(work.visit.shape[0]), "P"),
    }


def _numbered_from(first: "tf.Tensor", part: Part) -> Part:
    """Returns a part whose repeat 0 is block `first` of the stack, int32[]."""
    apply = part.apply
    return dataclasses.replace(
        part,
        apply=lambda values, x, shared, repeat, keep: apply(
            values, x, shared, first + repeat, keep
        ),
    )
