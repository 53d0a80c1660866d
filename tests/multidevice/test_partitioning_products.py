"""Each row of GShard's Table 4: its values and its collectives, on asymmetric meshes."""

import pytest
import tensorflow as tf

from gshard_nmt.spmd.sharding import annotate
from tests.multidevice.partitioning import MESHES, Case, assert_equal, forward_collectives, table


def einsum(equation):
    return lambda *operands: tf.einsum(equation, *operands)


def dispatch(mask, tokens):
    """GSEC,GSM->EGCM, annotated to be local along G as in GShard section 3.3.2, and then resharded."""
    return tf.transpose(annotate(tf.einsum("GSEC,GSM->GECM", mask, tokens), "GECM"), [1, 0, 2, 3])


# For each row a case, and the kinds of collectives that it may have. If there are any, it has one.
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
        Case(  # TensorFlow on a CPU wants the features last.
            lambda images, kernel: tf.nn.conv2d(images, kernel, strides=1, padding="SAME"),
            [(6, 24, 5, 3), (3, 3, 3, 4)],
            [["x", "y", -1, -1], [-1, -1, -1, -1]],
            ["x", "y", -1, -1],
        ),
        {"collective-permute"},
    ),
}

# Beyond the table: both mesh axes at once (GSPMD Figures 3 and 6), and sizes that do not divide.
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
def test_partitioned_is_unpartitioned(name):
    assert_equal(name, *RESULTS("3x2"))


@pytest.mark.parametrize("row", TABLE_4)
def test_a_row_of_table_4_has_the_collectives_of_the_table(row):
    case, allowed = TABLE_4[row]
    counts = forward_collectives(case, MESHES["2x4"])
    assert {kind for kind, _ in counts} <= allowed
    assert bool(counts) == bool(allowed)
    # Groups run only along y: the two lines of the mesh along x do the same, independently.
    assert {axes for _, axes in counts} <= {"y"}


def test_propagation_of_data_and_model_parallelism():
    """GSPMD section 3.2: BD,DF->BF with B on one axis and F on the other needs no communication."""
    data_and_model = Case(
        einsum("BD,DF->BF"), [(24, 7), (7, 8)], [["x", -1], [-1, "y"]], ["x", "y"]
    )
    assert not forward_collectives(data_and_model, MESHES["2x4"])
    # If D of the weights is on x, they are gathered before use, which is weight-update sharding.
    sharded = Case(einsum("BD,DF->BF"), [(24, 8), (8, 8)], [["x", -1], ["x", "y"]], ["x", "y"])
    assert forward_collectives(sharded, MESHES["2x4"]) == {("all-gather", "x"): 1}
