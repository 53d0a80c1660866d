"""Results that the forward pass keeps: their values, gradients and declared shapes."""

import pytest
import tensorflow as tf

from gshard_nmt.model import attention, counter_random, moe
from gshard_nmt.model.gating import Gating
from gshard_nmt.model.kept_results import Result, reader, recorder
from gshard_nmt.model.layers import Mode
from gshard_nmt.model.moe import MoE
from gshard_nmt.model.parameters import initial_values

KEY = counter_random.Key.from_seed(tf.constant([7, 1], tf.uint32))
X = tf.constant([[1.0, -2.0], [3.0, 0.5]])


def declared(results: dict[str, tf.Tensor], letters: dict[str, str]) -> dict[str, Result]:
    """Returns results as their declarations."""
    kinds = {tf.float32: "float32", tf.bfloat16: "activation", tf.int32: "int32"}
    return {
        name: Result(tuple(x.shape), letters[name], kinds[x.dtype]) for name, x in results.items()
    }


class Everything:
    def __contains__(self, name: str) -> bool:
        return True


def test_a_kept_value_replaces_the_new_one_and_passes_its_gradient_on():
    keep = reader({"square": tf.fill(X.shape, 5.0), "count": tf.constant([4])})
    with tf.GradientTape() as tape:
        tape.watch(X)
        square = keep("square", X * X)
        y = tf.reduce_sum(square * square)
    assert square.numpy().tolist() == [[5.0, 5.0], [5.0, 5.0]]
    # dy/dsquare comes from the kept value, dsquare/dx from x.
    assert tape.gradient(y, X).numpy().tolist() == (2 * 5.0 * 2 * X).numpy().tolist()
    assert keep("count", tf.constant([1])).numpy().tolist() == [4]
    assert keep("another", X) is X


@pytest.mark.parametrize("dispatch", ["einsum", "gather"])
@pytest.mark.parametrize("routing", ["top2", "switch"])
def test_the_declared_results_of_a_moe_layer_are_those_that_it_shows(dispatch, routing):
    rules = MoE(Gating(4, routing=routing), hidden_dim=8, num_groups=2, dispatch=dispatch)
    keep, results = recorder(Everything())
    p = initial_values(moe.declare_moe(5, rules), KEY)
    x = tf.cast(counter_random.normal(KEY.fold("x"), (3, 8, 5)), tf.bfloat16)
    moe.moe_layer(p, x, tf.ones([3, 8], tf.bool), rules, Mode(keeper=keep, scope="moe/"))
    letters = {"inputs": "EGM", "outputs": "GEM", "logits": "GSE", "density": "G_"}
    letters = {name: letters.get(name.removeprefix("moe/"), "GS") for name in results}
    expected = moe.kept_results(rules, 3, 8, 5)
    assert declared(results, letters) == {f"moe/{name}": r for name, r in expected.items()}
    assert len(expected) == 6 + 3 * rules.gating.choices


def test_the_declared_results_of_an_attention_are_those_that_it_shows():
    keep, results = recorder(Everything())
    p = initial_values(attention.declare_attention(6, 2, 4, False, False), KEY)
    x = tf.cast(counter_random.normal(KEY.fold("x"), (3, 8, 6)), tf.bfloat16)
    memory = tf.cast(counter_random.normal(KEY.fold("memory"), (3, 7, 6)), tf.bfloat16)
    attention.attend(p, x, memory, tf.zeros([1, 1, 8, 7]), Mode(keeper=keep), 0.0)
    letters = {"query": "BLND", "key": "BTND", "value": "BTND", "output": "BLM"}
    assert declared(results, letters) == attention.kept_results(3, 8, 7, 6, 2, 4)
