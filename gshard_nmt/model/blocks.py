"""Runs each expert on blocks of its own tokens: no capacity, no dropped choice, and static shapes.

The choices of all tokens are put in the order of their experts. The run of each expert is padded to
blocks of BLOCK_ROWS rows, and a loop visits the blocks. For blocks of 2 rows, 3 experts and 4 tokens
with two choices each:

    token           0      1      2      3
    experts         0 2    0 1    2 0    0 2
    rows        0: [0 1][2 3]     1: [1 _]     2: [0 2][3 _]

The number of blocks is known only at run time, but it has a limit: if n choices visit E experts, there
are at most E + (n - E) / BLOCK_ROWS blocks. The buffers have this size, and the loop ends earlier.

The steps of such a loop are too short for an accelerator. There the blocks are larger, a batched product
computes many at a time, each with a copy of its expert's weights, and mostly that is all (`many_blocks`).

On a CPU a token's output does not depend on the other tokens, bit for bit. All products have the same
shape, [BLOCK_ROWS, M] x [M, H], and a row of a product depends on the same row of its operand only. The
outputs are multiplied by their weights inside the block. After that they are only added, first choice
first, so no compiler can fuse a multiplication into the addition.
"""

import dataclasses
from collections.abc import Callable, Mapping

from gshard_nmt.model.last_dimension import running_total
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import read, write

BLOCK_ROWS = 32
"""The rows of a block. Large blocks have more padding, and small blocks read the weights more often. From
64 rows on, XLA's CPU kernels add in another order, so a change can change the bits of translations."""
ONE_BLOCK = BLOCK_ROWS, 1  # the rows of a block and the blocks at a time, on CPUs
MOST_BYTES = 2**28
"""The most bytes of copies of experts' weights that an accelerator makes at a time."""

Weights = Mapping[str, "tf.Tensor"]
Expert = Callable[[Weights, "tf.Tensor"], "tf.Tensor"]
"""Computes N blocks, [N, rows, M] -> [N, rows, M], with weights for each: wi[N, M, H] and wo[N, H, M]."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which token is in each row of the blocks, and which row each choice of a token has."""

    block_rows: int
    at_a_time: int  # the blocks of a step of the loop
    token_of_row: "tf.Tensor"  # int32[rows]; the last token in an empty row
    weight_of_row: "tf.Tensor"  # <float>[rows], the weight of the choice; 0 in an empty row
    # int32[n, A]; the number of rows, for a choice of none of these experts
    row_of_choice: "tf.Tensor"
    first_block: "tf.Tensor"  # int32[E], the first block of each expert
    num_blocks: "tf.Tensor"  # int32[E], the blocks of each expert


def most_blocks(choices: int, experts: int, block_rows: int = BLOCK_ROWS) -> int:
    one_row = min(choices, experts)
    return one_row + (choices - one_row) // block_rows


def many_blocks(choices: int, experts: int, expert_bytes: int) -> tuple[int, int]:
    """Returns the rows of a block, a power of 2, and the blocks at a time, for an accelerator.

    If these experts have `choices`, there are at most 2 E blocks. All are computed at a time, unless the
    copies of their weights would take more than MOST_BYTES. docs/performance.md has what that gives.
    """
    rows = max(BLOCK_ROWS, 1 << (-(-choices // experts) - 1).bit_length())
    most = most_blocks(choices, experts, rows)
    return rows, max(1, min(most, MOST_BYTES // expert_bytes))


def plan(expert: "tf.Tensor", weight: "tf.Tensor", experts: int, sizes: tuple[int, int]) -> Plan:
    """Returns the rows of all choices.

    Args:
      expert: int32[n, A], the expert of each choice. A choice below 0, or of `experts` or more, takes
        no row.
      weight: <float>[n, A], the weight of each choice.
      experts: E.
      sizes: the rows of a block and the blocks at a time: ONE_BLOCK, or those of `many_blocks`.
    """
    block_rows, at_a_time = sizes
    tokens, assignments = expert.shape.as_list()
    choices = tokens * assignments
    steps = -(-most_blocks(choices, experts, block_rows) // at_a_time)
    num_rows = steps * at_a_time * block_rows
    # Shape: [n, A] -> [n A] -> int32[n A, E], 1 if the choice is this expert.
    is_expert = tf.cast(tf.reshape(expert, [choices, 1]) == tf.range(experts), tf.int32)
    # int32[n A, E], the choices of this expert up to and including this one.
    count = running_total(is_expert, axis=0)
    num_blocks = (count[-1] + block_rows - 1) // block_rows
    first_block = tf.cumsum(num_blocks, exclusive=True)
    # Shape: [n A, E] -> [n A]
    row = tf.reduce_sum(is_expert * (first_block * block_rows + count - 1), axis=-1)
    row = tf.where(tf.reduce_sum(is_expert, axis=-1) > 0, row, num_rows)
    first_row, end_row = first_block * block_rows, (first_block + num_blocks) * block_rows
    choice_of_row = _choice_of_row(count, first_row, end_row, num_rows)
    padded = tf.concat([tf.reshape(weight, [choices]), tf.zeros([1], weight.dtype)], axis=0)
    return Plan(
        block_rows=block_rows,
        at_a_time=at_a_time,
        token_of_row=tf.minimum(choice_of_row // assignments, tokens - 1),
        weight_of_row=tf.gather(padded, choice_of_row),
        row_of_choice=tf.reshape(row, [tokens, assignments]),
        first_block=first_block,
        num_blocks=num_blocks,
    )


def _choice_of_row(
    count: "tf.Tensor", first_row: "tf.Tensor", end_row: "tf.Tensor", num_rows: int
) -> "tf.Tensor":
    """Returns the choice in each row, int32[rows]; the number of choices, if the row is empty.

    Row j of an expert has the first choice whose count is j + 1. The counts of an expert never fall, so
    a binary search finds it. A scatter is slow on every device, and a comparison of all choices with all
    rows needs the square of their number.
    """
    choices, experts = count.shape.as_list()
    number = tf.range(num_rows)
    expert = _ended(number, end_row)
    wanted = number - tf.gather(first_row, expert) + 1
    # Shape: [n A, E] -> [n A E]
    counts = tf.reshape(count, [choices * experts])
    smaller = tf.zeros([num_rows], tf.int32)  # the choices whose count is known to be too small
    for step in (1 << bit for bit in reversed(range(choices.bit_length()))):
        last = smaller + step - 1
        count_there = tf.gather(counts, tf.minimum(last, choices - 1) * experts + expert)
        is_smaller = (last < choices) & (count_there < wanted)
        smaller = tf.where(is_smaller, smaller + step, smaller)
    return smaller


def _ended(number: "tf.Tensor", ends: "tf.Tensor") -> "tf.Tensor":
    """Returns the experts that end at or before each number, int32[n], E - 1 at most."""
    has_ended = tf.cast(number[:, tf.newaxis] >= ends, tf.int32)
    return tf.minimum(tf.reduce_sum(has_ended, axis=-1), ends.shape[0] - 1)


def mixture(expert: Expert, weights: Weights, tokens: "tf.Tensor", rows: Plan) -> "tf.Tensor":
    """Returns the sum of the weighted outputs of each token's experts: [n, M] -> [n, M].

    Args:
      weights: the weights of all experts, each with a leading dimension E.
      tokens: [n, M].
      rows: the plan of these tokens and experts.
    """
    size, model_dim = rows.at_a_time * rows.block_rows, tokens.shape[1]

    def own(w: "tf.Tensor", numbers: "tf.Tensor") -> "tf.Tensor":
        """Returns the weights of some experts. Those that were rounded for decoding stay bfloat16."""
        one = rows.at_a_time == 1
        if one and w.dtype == tf.bfloat16:  # XLA:CPU would convert all of w to float32 and back
            return tf.bitcast(read(tf.bitcast(w, tf.uint16), numbers[0], 1), tf.bfloat16)
        w = read(w, numbers[0], 1) if one else tf.gather(w, numbers)
        return w if w.dtype == tf.bfloat16 else tf.cast(w, tokens.dtype)

    def some_blocks(i: "tf.Tensor", outputs: "tf.Tensor") -> tuple["tf.Tensor", "tf.Tensor"]:
        numbers = _ended(i + tf.range(rows.at_a_time), rows.first_block + rows.num_blocks)
        values, start = {name: own(w, numbers) for name, w in weights.items()}, i * rows.block_rows
        x = tf.gather(tokens, read(rows.token_of_row, start, size))
        y = expert(values, tf.reshape(x, [rows.at_a_time, rows.block_rows, model_dim]))
        weight = read(rows.weight_of_row, start, size)[:, tf.newaxis]
        return i + rows.at_a_time, write(outputs, start, tf.reshape(y, [size, model_dim]) * weight)

    # The last row is for the choices that have no row. This zero is known only at run time: TF2XLA would
    # build a large array of a constant on the host.
    no_output = tf.cast(rows.num_blocks[0] < 0, tokens.dtype)
    outputs = tf.broadcast_to(no_output, [rows.token_of_row.shape[0] + 1, model_dim])
    end, start = tf.reduce_sum(rows.num_blocks), [tf.zeros([], tf.int32), outputs]
    loops = rows.token_of_row.shape[0] > size
    result = (
        tf.while_loop(lambda i, _: i < end, some_blocks, start) if loops else some_blocks(*start)
    )
    return tf.add_n([tf.gather(result[1], row) for row in tf.unstack(rows.row_of_choice, axis=1)])
