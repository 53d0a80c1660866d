"""Runs each expert on blocks of its own tokens: no capacity, no dropped choice, and static shapes.

The choices of all tokens are put in the order of their experts. The run of each expert is padded to
blocks of BLOCK_ROWS rows, and a loop visits the blocks. For blocks of 2 rows, 3 experts and 4 tokens
with two choices each:

    token           0      1      2      3
    experts         0 2    0 1    2 0    0 2
    rows        0: [0 1][2 3]     1: [1 _]     2: [0 2][3 _]

The number of blocks is known only at run time, but it has a limit: if n choices visit E experts, there
are at most E + (n - E) / BLOCK_ROWS blocks. The buffers have this size, and the loop ends earlier. On an
accelerator the steps of such a loop are too short: `at_once` computes all blocks in one product.

A token's output does not depend on the other tokens, bit for bit. All products have the same shape,
[BLOCK_ROWS, M] x [M, H], and a row of a product depends on the same row of its operand only. The outputs
are multiplied by their weights inside the block. After that they are only added, first choice first, so
no compiler can fuse a multiplication into the addition.
"""

import dataclasses
from collections.abc import Callable, Mapping

from gshard_nmt.model.last_dimension import running_total
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import read, write

BLOCK_ROWS = 32
"""The rows of a block. Large blocks have more padding, and small blocks read the weights more often. From
64 rows on, XLA's CPU kernels add in another order, so a change can change the bits of translations."""

Weights = Mapping[str, "tf.Tensor"]
Expert = Callable[[Weights, "tf.Tensor"], "tf.Tensor"]
"""Computes N blocks, [N, rows, M] -> [N, rows, M], with weights for each: wi[N, M, H] and wo[N, H, M]."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which token is in each row of the blocks, and which row each choice of a token has."""

    block_rows: int
    token_of_row: "tf.Tensor"  # int32[rows]; the last token in an empty row
    weight_of_row: "tf.Tensor"  # <float>[rows], the weight of the choice; 0 in an empty row
    # int32[n, A]; the number of rows, for a choice of none of these experts
    row_of_choice: "tf.Tensor"
    first_block: "tf.Tensor"  # int32[E], the first block of each expert
    num_blocks: "tf.Tensor"  # int32[E], the blocks of each expert


def most_blocks(choices: int, experts: int, block_rows: int = BLOCK_ROWS) -> int:
    one_row = min(choices, experts)
    return one_row + (choices - one_row) // block_rows


def rows_at_once(choices: int, experts: int) -> int:
    """Returns the rows of a block for `at_once`, a power of 2. There are at most 2 E blocks then."""
    return max(BLOCK_ROWS, 1 << (-(-choices // experts) - 1).bit_length())


def plan(expert: "tf.Tensor", weight: "tf.Tensor", experts: int, block_rows: int) -> Plan:
    """Returns the rows of all choices.

    Args:
      expert: int32[n, A], the expert of each choice. A choice below 0, or of `experts` or more, takes
        no row.
      weight: <float>[n, A], the weight of each choice.
      experts: E.
      block_rows: BLOCK_ROWS, or the `rows_at_once`.
    """
    tokens, assignments = expert.shape.as_list()
    choices = tokens * assignments
    num_rows = most_blocks(choices, experts, block_rows) * block_rows
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


def at_once(expert: Expert, weights: Weights, tokens: "tf.Tensor", rows: Plan) -> "tf.Tensor":
    """Returns what `mixture` does, up to rounding, with no loop. See `rows_at_once`.

    Each block has a copy of the weights of its expert. On an H100 this is several times as fast as the
    loop, each step of which starts some small kernels (docs/performance.md).
    """
    num_blocks = rows.token_of_row.shape[0] // rows.block_rows
    # int32[blocks]; the blocks that are left over have the last expert, and weights of 0
    number = _ended(tf.range(num_blocks), rows.first_block + rows.num_blocks)
    values = {name: tf.cast(tf.gather(w, number), tokens.dtype) for name, w in weights.items()}
    shape = [num_blocks, rows.block_rows, tokens.shape[1]]
    outputs = expert(values, tf.reshape(tf.gather(tokens, rows.token_of_row), shape))
    outputs = tf.reshape(outputs, [-1, tokens.shape[1]]) * rows.weight_of_row[:, tf.newaxis]
    return _summed(tf.concat([outputs, tf.zeros_like(tokens[:1])], axis=0), rows)


def mixture(expert: Expert, weights: Weights, tokens: "tf.Tensor", rows: Plan) -> "tf.Tensor":
    """Returns the sum of the weighted outputs of each token's experts: [n, M] -> [n, M].

    Args:
      weights: the weights of all experts, each with a leading dimension E.
      tokens: [n, M].
      rows: the plan of these tokens and experts.
    """

    def own(w: "tf.Tensor", number: "tf.Tensor") -> "tf.Tensor":
        """Returns the weights of one expert. Those that were rounded for decoding stay bfloat16."""
        if w.dtype == tf.bfloat16:  # XLA:CPU would convert all of w to float32 and back
            return tf.bitcast(read(tf.bitcast(w, tf.uint16), number, 1), tf.bfloat16)
        return tf.cast(read(w, number, 1), tokens.dtype)

    def block(i: "tf.Tensor", outputs: "tf.Tensor") -> tuple["tf.Tensor", "tf.Tensor"]:
        number = _ended(i[tf.newaxis], rows.first_block + rows.num_blocks)[0]
        values, start = {name: own(w, number) for name, w in weights.items()}, i * BLOCK_ROWS
        x = tf.gather(tokens, read(rows.token_of_row, start, BLOCK_ROWS))
        weight = read(rows.weight_of_row, start, BLOCK_ROWS)
        outputs_of_block = expert(values, x[tf.newaxis])[0] * weight[:, tf.newaxis]
        return i + 1, write(outputs, start, outputs_of_block)

    # The last row is for the choices that have no row. This zero is known only at run time: TF2XLA would
    # build a large array of a constant on the host.
    no_output = tf.cast(rows.num_blocks[0] < 0, tokens.dtype)
    outputs = tf.broadcast_to(no_output, [rows.token_of_row.shape[0] + 1, tokens.shape[1]])
    end, zero = tf.reduce_sum(rows.num_blocks), tf.zeros([], tf.int32)
    return _summed(tf.while_loop(lambda i, _: i < end, block, [zero, outputs])[1], rows)


def _summed(outputs: "tf.Tensor", rows: Plan) -> "tf.Tensor":
    """Adds up the outputs of each token's choices: [rows + 1, M] -> [n, M]."""
    return tf.add_n([tf.gather(outputs, row) for row in tf.unstack(rows.row_of_choice, axis=1)])
