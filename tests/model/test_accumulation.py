"""Microbatches one after another: random numbers, shares, evaluation, bad values."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model import guard
from gshard_nmt.model.accumulation import WholeBatch
from gshard_nmt.model.config import Model
from gshard_nmt.model.optimizer import Optimizer
from gshard_nmt.model.parameters import within
from gshard_nmt.model.stages import microbatches_of
from gshard_nmt.model.steps import StepFunctions
from tests.model.examples import CONTROL, DENSE, ONE, SMALL, TWO, rows

SHALLOW = dataclasses.replace(
    DENSE,
    encoder_layers=0,
    decoder_layers=1,
    positions="learned",
    input_dropout=0.5,
    residual_dropout=0.0,
)


def functions(microbatches: int, model: Model = SHALLOW) -> StepFunctions:
    return StepFunctions(model, Optimizer(), 50, 40, languages=2, microbatches=microbatches)


def test_each_microbatch_has_its_own_dropout_its_share_and_its_guard():
    """The two rows are equal, so only dropout can make their losses differ."""
    steps = functions(2)
    (state,) = steps.initialize(CONTROL)

    @tf.function(jit_compile=True, autograph=False)
    def step(state, batch):
        parameters = within(state, "parameters")
        return steps.train_step(state, batch, CONTROL), steps.eval_step(parameters, batch)

    batch = rows([ONE], [ONE], length=8)
    batch |= {n: array * [[1], [2]] for n, array in batch.items() if n.endswith("languages")}
    (_, metrics), (sums,) = step(state, batch)
    first, second = metrics["language_nll"].numpy()
    assert abs(first - second) > 0.01
    assert metrics["language_target_tokens"].numpy().tolist() == [len(ONE[1])] * 2
    assert float(metrics["nll"]) == pytest.approx((first + second) / 2, rel=1e-5)
    (expected,) = functions(1).eval_step(within(state, "parameters"), batch)
    for name, value in expected.items():
        assert float(sums[name]) == pytest.approx(float(value), rel=1e-5)

    batch = rows([ONE], [], length=8)
    (_, metrics), (sums,) = step(state, batch)
    assert float(metrics["tokens"]) == float(sums["tokens"]) == len(ONE[1])
    assert float(metrics["nll"]) == pytest.approx(float(metrics["language_nll"][0]), rel=1e-5)
    assert int(metrics["status"]) == guard.FINE

    # Only the second microbatch has a token at position 3, and the step is bad as a whole.
    name = "parameters/target_position_embedding"
    embedding = state[name].numpy()
    embedding[3] = np.nan
    bad = state | {name: tf.constant(embedding)}
    (new_state, metrics), _ = step(bad, rows([ONE], [TWO], length=8))
    assert int(metrics["status"]) == guard.BAD_LOSS
    for name, value in within(bad, "parameters").items():
        np.testing.assert_array_equal(new_state[f"parameters/{name}"], value, err_msg=name)


def test_a_microbatch_takes_its_part_of_the_groups_and_of_the_tokens():
    batch = rows([ONE, TWO], [ONE], [TWO], [], length=8)
    model = dataclasses.replace(SMALL, num_groups=4)
    whole = WholeBatch(model, batch, 2)
    assert whole.model_of_microbatch.num_groups == 2
    by_size = dataclasses.replace(model, num_groups=0, group_size=16)
    assert WholeBatch(by_size, batch, 2).model_of_microbatch == by_size
    shares = whole.shares({name: array[::2] for name, array in batch.items()})
    # The batch has 14 source tokens and 14 target tokens.
    source = (2 * len(TWO[0]) + len(ONE[0])) / (2 * len(ONE[0] + TWO[0]))
    target = (2 * len(TWO[1]) + len(ONE[1])) / (2 * len(ONE[1] + TWO[1]))
    assert float(shares["source"]) == pytest.approx(source)
    assert float(shares["target"]) == pytest.approx(target)


def test_a_loop_over_blocks_adds_to_the_sums_and_makes_no_other_array_of_gradients():
    """Without microbatches a loop keeps gradients in bfloat16, if every use casts the weight to bfloat16.

    The gate is used in float32, and so is its gradient.
    """
    experts = {"experts": 4, "moe_every": 1, "num_groups": 2}
    model = dataclasses.replace(SHALLOW, stack="scan", activation_dtype="bfloat16", **experts)
    weights = functions(1, model).declare_parameters()
    wi, gate = (weights[f"decoder/block/moe_0/{name}"] for name in ("wi", "gate"))

    def carried(microbatches: int) -> set:
        """Returns the dtype and the shape of all arrays that a loop carries."""
        steps, batch = functions(microbatches, model), rows([ONE], [TWO], length=8)
        specs = {name: tf.TensorSpec(p.shape, p.dtype) for name, p in weights.items()}
        step = tf.function(lambda p: steps.gradients(p, batch, CONTROL, 1)[0], autograph=False)
        graph = step.get_concrete_function(specs).graph.as_graph_def()
        nodes = [graph.node, *(function.node_def for function in graph.library.function)]
        return {
            (tf.as_dtype(dtype), tuple(dim.size for dim in shape.dim))
            for node in itertools.chain(*nodes)
            if node.op in ("While", "StatelessWhile")
            for dtype, shape in zip(
                node.attr["T"].list.type, node.attr["output_shapes"].list.shape, strict=True
            )
        }

    assert (tf.bfloat16, wi.shape) in carried(1)
    assert (tf.bfloat16, gate.shape) not in carried(1)
    assert (tf.float32, gate.shape) in carried(1)
    assert (tf.bfloat16, wi.shape) not in carried(2)
    assert (tf.float32, wi.shape) in carried(2)


def test_microbatch_m_has_every_nth_row_from_m():
    # Lingvo and PRAXIS divide 6 rows into 3 microbatches as {0, 3}, {1, 4}, {2, 5}.
    split = microbatches_of(tf.reshape(tf.range(12), [6, 2]), 3, "BL")
    np.testing.assert_array_equal(split[:, :, 0] // 2, [[0, 3], [1, 4], [2, 5]])
