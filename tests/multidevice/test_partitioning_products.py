"""Each row of GShard's Table 4: what it computes and what it communicates, on asymmetric meshes."""

import pytest
import tensorflow as tf

from gshard_nmt.spmd.sharding import annotate
from tests.multidevice.partitioning import (
    MESHES,
    Case,
    assert_equal,
    forward_collectives,
    table,
)


def einsum(equation):
    return lambda *operands: tf.einsum(equation, *operands)


def convolution(images, kernel):
    """BIXY,xyIO->BOXY, split over X; TensorFlow on a CPU has the features last."""
    return tf.nn.conv2d(images, kernel, strides=1, padding="SAME")


def dispatch(mask, tokens):
    """GSEC,GSM->EGCM: locally along G, as section 3.3.2 has it; resharding comes with the result.

    Left to itself, today's partitioner would gather the tokens and reshard the mask.
    """
    local = annotate(tf.einsum("GSEC,GSM->GECM", mask, tokens), "GECM")
    return tf.transpose(local, [1, 0, 2, 3])


# The row, and the only kinds of collectives that it may have; where there are any, it has one.
TABLE_4 = {
    "Add(A,A->A)": (Case(lambda a, b: a + b, [(24,), (24,)], [["y"], ["y"]], ["y"]), set()),
    "Matmul(AB,BC->AC) by B": (
        Case(einsum("AB,BC->AC"), [(6, 24), (24, 8)], [[-1, "y"], ["y", -1]], [-1, -1]),
        {"all-reduce"},
    ),
    "Matmul(AB,BC->AC) by A": (
        Case(einsum("AB,BC->AC"), [(24, 6), (6, 8)], [["y", -1], [-1, -1]], ["y", -1]),
        set(),
    ),
    "Matmul(AB,BC->AC) by A and B": (
        Case(einsum("AB,BC->AC"), [(24, 24), (24, 8)], [["y", -1], ["y", -1]], ["y", -1]),
        {"all-gather", "collective-permute"},
    ),
    "Matmul(AB,BC->AC) by A and C": (
        Case(einsum("AB,BC->AC"), [(24, 6), (6, 24)], [["y", -1], [-1, "y"]], ["y", -1]),
        {"all-gather", "collective-permute"},
    ),
    "Reduce(AB->A) by A": (
        Case(lambda a: tf.reduce_sum(a, axis=1), [(24, 6)], [["y", -1]], ["y"]),
        set(),
    ),
    "Reduce(AB->B) by A": (
        Case(lambda a: tf.reduce_sum(a, axis=0), [(24, 6)], [["y", -1]], [-1]),
        {"all-reduce"},
    ),
    "Einsum(GSEC,GSM->EGCM) by G, then E": (
        Case(
            dispatch,
            [(8, 32, 8, 8), (8, 32, 4)],
            [["y", -1, -1, -1], ["y", -1, -1]],
            ["y", -1, -1, -1],
        ),
        {"all-to-all"},
    ),
    "Convolution(BIXY,xyIO->BOXY) by X": (
        Case(
            convolution,
            [(6, 24, 5, 3), (3, 3, 3, 4)],
            [["x", "y", -1, -1], [-1, -1, -1, -1]],
            ["x", "y", -1, -1],
        ),
        {"collective-permute"},
    ),
}

# More than the table: both mesh axes at once (GSPMD Figures 3 and 6), and nothing divides.
MORE = {
    "data and model": Case(
        einsum("BD,DF->BF"), [(15, 7), (7, 10)], [["x", -1], [-1, "y"]], ["x", "y"]
    ),
    "all of it": Case(
        einsum("BD,DF->BF"), [(15, 7), (7, 10)], [["x", "y"], ["y", "x"]], ["y", "x"]
    ),
    "recursive": Case(einsum("AB,BC->AC"), [(5, 9), (9, 7)], [["y", "x"], ["x", "y"]], ["y", -1]),
    "batched": Case(
        einsum("EBD,EDF->EBF"), [(3, 7, 5), (3, 5, 9)], [["x", -1, -1], ["x", -1, "y"]], None
    ),
    "left to propagation": Case(einsum("BD,DF->BF"), [(15, 7), (7, 10)], [["x", -1], [-1, "y"]]),
    "attention": Case(
        lambda q, k, v: tf.einsum(
            "BNLT,BTND->BLND", tf.nn.softmax(tf.einsum("BLND,BTND->BNLT", q, k) / 4e4), v
        ),
        [(3, 5, 6, 4), (3, 7, 6, 4), (3, 7, 6, 4)],
        [["x", -1, "y", -1]] * 3,
        ["x", -1, "y", -1],
    ),
}

CASES = {name: case for name, (case, _) in TABLE_4.items()} | MORE
RESULTS = table(CASES)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mesh", MESHES)
def test_partitioned_is_unpartitioned(mesh, name):
    assert_equal(name, *RESULTS(mesh))


@pytest.mark.parametrize("row", TABLE_4)
def test_a_row_of_table_4_communicates_what_the_table_says(row):
    case, allowed = TABLE_4[row]
    counts = forward_collectives(case, MESHES["2x4"])
    assert {kind for kind, _ in counts} <= allowed
    assert bool(counts) == bool(allowed)
    # In groups along y alone: the two lines of the mesh along x do the same, each for itself.
    assert {axes for _, axes in counts} <= {"y"}


def test_what_propagation_fills_in():
    """GSPMD section 3.2: BD,DF->BF with B on one axis and F on the other needs no communication."""
    data_and_model = Case(
        einsum("BD,DF->BF"), [(24, 7), (7, 8)], [["x", -1], [-1, "y"]], ["x", "y"]
    )
    assert not forward_collectives(data_and_model, MESHES["2x4"])
    # With D on x in the weights they are gathered before use: weight-update sharding.
    sharded = Case(einsum("BD,DF->BF"), [(24, 8), (8, 8)], [["x", -1], ["x", "y"]], ["x", "y"])
    assert forward_collectives(sharded, MESHES["2x4"]) == {("all-gather", "x"): 1}
