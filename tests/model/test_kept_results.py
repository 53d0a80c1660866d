"""Results that the forward pass keeps: their values and gradients."""

import pytest
import tensorflow as tf

from gshard_nmt.model.kept_results import KINDS, reader, recorder

X = tf.constant([[1.0, -2.0], [3.0, 0.5]])


def test_a_kept_value_replaces_the_new_one_and_passes_its_gradient_on():
    keep = reader("experts", [tf.fill(X.shape, 5.0), tf.constant([4])])
    with tf.GradientTape() as tape:
        tape.watch(X)
        square = keep("experts", X * X, "BM")
        y = tf.reduce_sum(square * square)
    assert square.numpy().tolist() == [[5.0, 5.0], [5.0, 5.0]]
    # dy/dsquare comes from the kept value, dsquare/dx from x.
    assert tape.gradient(y, X).numpy().tolist() == (2 * 5.0 * 2 * X).numpy().tolist()
    assert keep("attention", X, "BM") is X
    assert keep("experts", tf.constant([1]), "_").numpy().tolist() == [4]


@pytest.mark.parametrize("keeps", KINDS)
def test_each_value_keeps_what_the_one_before_it_keeps_and_more(keeps):
    keep, results = recorder(keeps)
    for kind in KINDS[1:]:
        assert keep(kind, X, kind) is X
    assert [letters for _, letters in results] == list(KINDS[1 : KINDS.index(keeps) + 1])
