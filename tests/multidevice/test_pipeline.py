"""A pipeline of small blocks on several devices: values, gradients and communication."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model.figures import row_of
from gshard_nmt.model.pipeline import Pipeline
from gshard_nmt.model.pipeline_schedule import Schedule
from gshard_nmt.model.stack import Declaration, Part
from gshard_nmt.model.stages import Lettered
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.sharding import annotate
from tests.multidevice.collectives import collectives
from tests.multidevice.compiled_function import Compiled

RULES = {"P": "stage", "R": "stage", "B": ("stage", "data"), "H": "tensor"}
BLOCKS, ROWS, LENGTH, WIDTH = 4, 2, 3, 4


def mesh_of(stages: int) -> Mesh:
    return Mesh(("stage", "data", "tensor"), (stages, 2, 4 // stages), rules=RULES)


def block(w, v, x, memory, mask, number):
    """A layer with two products, which is NaN for zeros, the input of a bubble. Also a total."""
    h = x / tf.norm(x, axis=-1, keepdims=True)
    h = annotate(tf.tanh(tf.einsum("BLM,MH->BLH", h, w)), "BLH")
    y = x + tf.einsum("BLH,HM->BLM", h, v) * mask[..., tf.newaxis] + memory
    # A range of as many numbers as there are stages: the compiler must not merge it with theirs.
    by_block = tf.one_hot(number, BLOCKS) * tf.reduce_mean(y * y)
    # Zeros of [BLOCKS, WIDTH] inside the stage, as the figures of MoE layers have them.
    figures = row_of(tf.stop_gradient(tf.reduce_sum(y, axis=[0, 1])), number, BLOCKS)
    return y, {"by_block": by_block, "rows": y[..., 0], "figures": figures}


def pipeline_of(schedule: Schedule, mask) -> Pipeline:
    def parts_of(side):
        def apply(values, x, shared, repeat, keep):
            return block(values["w"], values["v"], x, shared[0], side["mask"], repeat)

        return [Part(["w", "v"], apply)]

    return Pipeline(
        schedule,
        parts_of,
        side={"mask": Lettered(mask, "_BL")},
        letters={"w": "MH", "v": "HM"},
        totals={
            "by_block": Declaration((BLOCKS,)),
            "rows": Declaration((ROWS, LENGTH), "BL"),
            "figures": Declaration((BLOCKS, WIDTH)),
        },
        saved=[[Declaration((ROWS, LENGTH, WIDTH), "BLM")]],
        scope="block",
    )


def one_by_one(stacked, x, memory, mask):
    """Applies the blocks to the microbatches, without a pipeline."""
    ys, by_block, rows, figures = [], [], [], []
    for m in range(x.shape[0]):
        y, total = x[m], {"by_block": 0.0, "rows": 0.0, "figures": 0.0}
        for r in range(BLOCKS):
            y, term = block(stacked["w"][r], stacked["v"][r], y, memory[m], mask[m], r)
            total = {name: total[name] + term[name] for name in total}
        ys.append(y)
        by_block.append(total["by_block"])
        rows.append(total["rows"])
        figures.append(total["figures"])
    totals = {"by_block": by_block, "rows": rows, "figures": figures}
    return tf.stack(ys), {name: tf.stack(total) for name, total in totals.items()}


def values_and_gradients(run, arrays):
    """Returns the result, the totals, and the gradients for seeds that differ everywhere."""
    watched = {name: arrays[name] for name in ("w", "v", "x", "memory")}
    with tf.GradientTape() as tape:
        tape.watch(watched)
        y, totals = run(
            {"w": watched["w"], "v": watched["v"]}, watched["x"], watched["memory"], arrays["mask"]
        )
    seeds = [arrays["seed"], arrays["by_block_seed"], arrays["rows_seed"]]
    gradients = tape.gradient([y, totals["by_block"], totals["rows"]], watched, seeds)
    return {"y": y, **totals, **{f"d_{name}": d for name, d in gradients.items()}}


def arrays_of(microbatches: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (microbatches, ROWS, LENGTH, WIDTH)
    shapes = {
        "w": (BLOCKS, WIDTH, 8),
        "v": (BLOCKS, 8, WIDTH),
        "x": shape,
        "memory": shape,
        "seed": shape,
        "by_block_seed": (microbatches, BLOCKS),
        "rows_seed": shape[:3],
    }
    arrays = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    return arrays | {"mask": rng.integers(0, 2, shape[:3]).astype(np.float32)}


def compiled(schedule: Schedule, mesh: Mesh):
    """Returns the values and gradients of a pipeline, and the text of its program."""
    arrays = arrays_of(schedule.microbatches)
    letters = {"w": "RMH", "v": "RHM"}
    specs = {n: ArraySpec(a.shape, a.dtype, letters.get(n, "")) for n, a in arrays.items()}

    def function(group):
        def run(stacked, x, memory, mask):
            return pipeline_of(schedule, mask).run(stacked, x, [memory])

        return [values_and_gradients(run, group)]

    program = Compiled(function, [specs], [{"d_w": "RMH", "d_v": "RHM"}], mesh)
    (results,) = program(arrays)
    return results, program.text


@functools.cache
def expected(microbatches: int) -> dict[str, np.ndarray]:
    arrays = {name: tf.constant(a) for name, a in arrays_of(microbatches).items()}
    return {k: v.numpy() for k, v in values_and_gradients(one_by_one, arrays).items()}


def check(results, microbatches: int) -> None:
    for name, value in expected(microbatches).items():
        np.testing.assert_allclose(results[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


CASES = {
    "2 stages, circular, 3 microbatches": Schedule(2, 3, visits=2),
    "4 stages, fewer microbatches": Schedule(4, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pipeline_computes_what_its_blocks_compute_in_turn(case):
    """Every bubble is NaN in the forward and in the backward pass, and changes nothing."""
    schedule = CASES[case]
    results, text = compiled(schedule, mesh_of(schedule.stages))
    check(results, schedule.microbatches)
    counts = collectives(text, mesh_of(schedule.stages))
    # One in each direction; the loops of the forward and of the backward pass have one each.
    assert counts["collective-permute", "stage"] == 2, counts
    assert not [key for key in counts if key[0] == "all-gather" and "stage" in key[1]], counts
    trips = re.findall(r'known_trip_count":{"n":"(\d+)"}', text)
    assert trips.count(str(schedule.iterations)) == 2, trips


def test_a_stage_shares_no_zeros_with_the_code_around_it():
    """Without a second axis, XLA took zeros of a stage for those of outside, and the process aborted."""
    results, _ = compiled(
        Schedule(2, 3), Mesh(("stage",), (2,), rules={"P": "stage", "R": "stage"})
    )
    check(results, 3)
