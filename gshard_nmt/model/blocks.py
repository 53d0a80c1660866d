"""Runs each expert on blocks of its own tokens: no capacity, no dropped choice, and static shapes.

The choices of all tokens are put in the order of their experts. The run of each expert is padded to
blocks of BLOCK_ROWS rows. A loop visits the experts that have tokens, and an inner loop visits their
blocks. For blocks of 2 rows, 3 experts and 4 tokens with two choices each:

    token           0      1      2      3
    experts         0 2    0 1    2 0    0 2
    rows        0: [0 1][2 3]     1: [1 _]     2: [0 2][3 _]

The number of blocks is known only at run time, but it has a limit: if n choices visit E experts, there
are at most E + (n - E) / BLOCK_ROWS blocks. The buffers have this size, and the loop ends earlier.

A token's output does not depend on the other tokens, bit for bit. All products have the same shape,
[BLOCK_ROWS, M] x [M, H], and a row of a product depends on the same row of its operand only. The outputs
are multiplied by their weights inside the block. After that they are only added, first choice first, so
no compiler can fuse a multiplication into the addition.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from gshard_nmt.model.last_dimension import running_total
from gshard_nmt.model.lazy_tensorflow import tf
from gshard_nmt.model.stack import read, write

BLOCK_ROWS = 32
"""The rows of a block. Large blocks have more padding, and small blocks read the weights more often. From
64 rows on, XLA's CPU kernels add in another order, so a change can change the bits of translations."""

Weights = Mapping[str, "tf.Tensor"]
Expert = Callable[[Weights, "tf.Tensor"], "tf.Tensor"]
"""Computes one expert, [rows, M] -> [rows, M], from its own weights, such as wi[M, H] and wo[H, M]."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which token is in each row of the blocks, and which row each choice of a token has."""

    token_of_row: "tf.Tensor"  # int32[rows]; the last token in an empty row
    weight_of_row: "tf.Tensor"  # <float>[rows], the weight of the choice; 0 in an empty row
    # int32[n, A]; the number of rows, for a choice of none of these experts
    row_of_choice: "tf.Tensor"
    first_block: "tf.Tensor"  # int32[E], the first block of each expert
    num_blocks: "tf.Tensor"  # int32[E], the blocks of each expert


def most_blocks(choices: int, experts: int) -> int:
    one_row = min(choices, experts)
    return one_row + (choices - one_row) // BLOCK_ROWS


def plan(expert: "tf.Tensor", weight: "tf.Tensor", experts: int) -> Plan:
    """Returns the rows of all choices.

    Args:
      expert: int32[n, A], the expert of each choice. A choice below 0, or of `experts` or more, takes
        no row.
      weight: <float>[n, A], the weight of each choice.
      experts: E.
    """
    tokens, assignments = expert.shape.as_list()
    choices = tokens * assignments
    num_rows = most_blocks(choices, experts) * BLOCK_ROWS
    # Shape: [n, A] -> [n A] -> int32[n A, E], 1 if the choice is this expert.
    is_expert = tf.cast(tf.reshape(expert, [choices, 1]) == tf.range(experts), tf.int32)
    # int32[n A, E], the choices of this expert up to and including this one.
    count = running_total(is_expert, axis=0)
    num_blocks = (count[-1] + BLOCK_ROWS - 1) // BLOCK_ROWS
    first_block = tf.cumsum(num_blocks, exclusive=True)
    # Shape: [n A, E] -> [n A]
    row = tf.reduce_sum(is_expert * (first_block * BLOCK_ROWS + count - 1), axis=-1)
    row = tf.where(tf.reduce_sum(is_expert, axis=-1) > 0, row, num_rows)
    choice_of_row = _choice_of_row(count, first_block, num_blocks, num_rows)
    padded = tf.concat([tf.reshape(weight, [choices]), tf.zeros([1], weight.dtype)], axis=0)
    return Plan(
        token_of_row=tf.minimum(choice_of_row // assignments, tokens - 1),
        weight_of_row=tf.gather(padded, choice_of_row),
        row_of_choice=tf.reshape(row, [tokens, assignments]),
        first_block=first_block,
        num_blocks=num_blocks,
    )


def _choice_of_row(
    count: "tf.Tensor", first_block: "tf.Tensor", num_blocks: "tf.Tensor", num_rows: int
) -> "tf.Tensor":
    """Returns the choice in each row, int32[rows]; the number of choices, if the row is empty.

    Row j of an expert has the first choice whose count is j + 1. The counts of an expert never fall, so
    a binary search finds it. A scatter is slow on every device, and a comparison of all choices with all
    rows needs the square of their number.
    """
    choices, experts = count.shape.as_list()
    number = tf.range(num_rows)
    # Shape: [rows, E] -> int32[rows], the experts whose blocks end before this row
    ends = (first_block + num_blocks) * BLOCK_ROWS
    expert = tf.reduce_sum(tf.cast(number[:, tf.newaxis] >= ends, tf.int32), axis=-1)
    expert = tf.minimum(expert, experts - 1)
    wanted = number - tf.gather(first_block, expert) * BLOCK_ROWS + 1
    # Shape: [n A, E] -> [n A E]
    counts = tf.reshape(count, [choices * experts])
    smaller = tf.zeros([num_rows], tf.int32)  # the choices whose count is known to be too small
    for step in (1 << bit for bit in reversed(range(choices.bit_length()))):
        last = smaller + step - 1
        count_there = tf.gather(counts, tf.minimum(last, choices - 1) * experts + expert)
        is_smaller = (last < choices) & (count_there < wanted)
        smaller = tf.where(is_smaller, smaller + step, smaller)
    return smaller


def mixture(
    expert: Expert, weights: Weights, tokens: "tf.Tensor", rows: Plan, nested: bool
) -> "tf.Tensor":
    """Returns the sum of the weighted outputs of each token's experts: [n, M] -> [n, M].

    Args:
      weights: the weights of all experts, each with a leading dimension E.
      tokens: [n, M].
      rows: the plan of these tokens and experts.
      nested: whether a loop over experts contains a loop over their blocks. Then each expert's weights
        are read once, and not once for each block. But TF2XLA needs several times as long to lower
        each further level of loops. The bits are the same.
    """

    def block(values: Weights, i: "tf.Tensor", outputs: "tf.Tensor") -> "tf.Tensor":
        start = i * BLOCK_ROWS
        x = tf.gather(tokens, read(rows.token_of_row, start, BLOCK_ROWS))
        weight = read(rows.weight_of_row, start, BLOCK_ROWS)
        return write(outputs, start, expert(values, x) * weight[:, tf.newaxis])

    def expert_of_block(i: "tf.Tensor", outputs: "tf.Tensor") -> "tf.Tensor":
        # The experts whose blocks end before block i come first.
        number = tf.reduce_sum(tf.cast(i >= rows.first_block + rows.num_blocks, tf.int32))
        return block(_of_expert(weights, number, tokens.dtype), i, outputs)

    def blocks_of_expert(k: "tf.Tensor", outputs: "tf.Tensor") -> "tf.Tensor":
        # The experts before the k-th expert with tokens have an order of at most k.
        number = tf.reduce_sum(tf.cast(order <= k, tf.int32))
        values = _of_expert(weights, number, tokens.dtype)
        first = rows.first_block[number]
        end = first + rows.num_blocks[number]
        return _repeated(functools.partial(block, values), first, end, outputs)

    # The last row is for the choices that have no row. This zero is known only at run time: TF2XLA would
    # build a large array of a constant on the host.
    no_output = tf.cast(rows.num_blocks[0] < 0, tokens.dtype)
    outputs = tf.broadcast_to(no_output, [rows.token_of_row.shape[0] + 1, tokens.shape[1]])
    zero = tf.zeros([], tf.int32)
    if nested:
        has_tokens = tf.cast(rows.num_blocks > 0, tf.int32)
        # int32[E], the number of experts with tokens up to this expert.
        order = tf.cumsum(has_tokens)
        outputs = _repeated(blocks_of_expert, zero, order[-1], outputs)
    else:
        outputs = _repeated(expert_of_block, zero, tf.reduce_sum(rows.num_blocks), outputs)
    return tf.add_n([tf.gather(outputs, row) for row in tf.unstack(rows.row_of_choice, axis=1)])


def _repeated(body, first: "tf.Tensor", end: "tf.Tensor", outputs: "tf.Tensor") -> "tf.Tensor":
    """Applies outputs = body(i, outputs) for each i from `first` to before `end`."""
    return tf.while_loop(
        lambda i, _: i < end, lambda i, outputs: (i + 1, body(i, outputs)), [first, outputs]
    )[1]


def _of_expert(weights: Weights, number: "tf.Tensor", dtype: "tf.DType") -> dict[str, "tf.Tensor"]:
    """Returns the weights of one expert in `dtype`; number is int32[].

    Weights that were rounded to bfloat16 for decoding stay bfloat16, because their products are faster.
    """
    return {
        name: _read_bfloat16(w, number)
        if w.dtype == tf.bfloat16
        else tf.cast(read(w, number, 1)[0], dtype)
        for name, w in weights.items()
    }


def _read_bfloat16(x: "tf.Tensor", number: "tf.Tensor") -> "tf.Tensor":
    """Returns x[number] of a bfloat16 tensor. XLA:CPU would convert all of x to float32 and back."""
    return tf.bitcast(read(tf.bitcast(x, tf.uint16), number, 1)[0], tf.bfloat16)
