"""Which old weights the weights of another model begin with."""

import dataclasses

import pytest

from gshard_nmt.model.inheritance import Origin, describe, layer_map, left_out, origins
from tests.model.examples import DENSE, MIXED, SMALL, declared


def between(old, new):
    """Returns the origins of all weights of a model, from another one."""
    return origins(old, declared(old), new, declared(new))


def words(name, old, new):
    return describe(name, between(old, new)[name], declared(old), declared(new)[name])


def test_an_equal_model_is_copied_weight_by_weight():
    for name, entries in between(SMALL, SMALL).items():
        if "/block/" in name:
            assert list(entries) == [Origin(name, repeat) for repeat in range(len(entries))]
        else:
            (origin,) = entries
            assert origin.name == name
            assert words(name, SMALL, SMALL) == "copied"
    assert left_out(between(SMALL, SMALL), declared(SMALL)) == {}


@pytest.mark.parametrize("old", [SMALL, DENSE, MIXED])
@pytest.mark.parametrize("new", [SMALL, DENSE, MIXED])
def test_every_weight_of_the_new_model_has_an_entry_for_each_repeat(old, new):
    plan = between(old, new)
    weights = declared(new)
    assert plan.keys() == weights.keys()
    for name, entries in plan.items():
        assert len(entries) == (weights[name].shape[0] if "/block/" in name else 1)


def test_a_second_copy_of_a_block_is_silent():
    deeper = dataclasses.replace(SMALL, encoder_layers=8)
    # Two layers are a block: the first has experts.
    pairs = layer_map(SMALL, deeper, "encoder")
    assert pairs == [(layer, silent) for a in (0, 2) for silent in (0, 1) for layer in (a, a + 1)]
    plan = between(SMALL, deeper)
    for name, word in (("moe_0/wo", 1), ("self_attention_1/output", 1), ("moe_0/wi", 0)):
        origin = plan[f"encoder/block/{name}"]
        assert [o.repeat for o in origin] == [0, 0, 1, 1]
        assert [o.silent for o in origin] == [False, bool(word), False, bool(word)]
    text = words("encoder/block/moe_0/wo", SMALL, deeper)
    assert text == "copied: moe_0[0], moe_0[0] times 0, moe_0[1], moe_0[1] times 0"


def test_a_model_with_fewer_layers_takes_every_second_one():
    deep = dataclasses.replace(DENSE, encoder_layers=6)
    shallow = dataclasses.replace(DENSE, encoder_layers=3)
    assert layer_map(deep, shallow, "encoder") == [(0, False), (2, False), (4, False)]
    unused = left_out(between(deep, shallow), declared(deep))
    assert unused["encoder/block/feed_forward_0/wi"] == "repeats 1, 3, 5"
    assert "decoder/block/feed_forward_0/wi" not in unused


def test_a_dense_feed_forward_becomes_each_expert():
    plan = between(DENSE, SMALL)
    assert [(o.name, o.repeat, o.upcycled) for o in plan["encoder/block/moe_0/wi"]] == [
        ("encoder/block/feed_forward_0/wi", 0, True),
        ("encoder/block/feed_forward_0/wi", 2, True),
    ]
    assert [o.repeat for o in plan["encoder/block/feed_forward_1/wo"]] == [1, 3]
    assert list(plan["encoder/block/moe_0/gate"]) == [None, None]
    assert words("encoder/block/moe_0/gate", DENSE, SMALL) == "new"
    assert words("encoder/block/moe_0/wi", DENSE, SMALL) == (
        "copied to each of 4 experts: feed_forward_0[0], feed_forward_0[2]"
    )
    assert left_out(plan, declared(DENSE)) == {}


def test_experts_do_not_become_a_dense_layer():
    plan = between(SMALL, DENSE)
    assert [o and o.name for o in plan["encoder/block/feed_forward_0/wi"]] == [
        None,
        "encoder/block/feed_forward_1/wi",
        None,
        "encoder/block/feed_forward_1/wi",
    ]
    assert left_out(plan, declared(SMALL))["encoder/block/moe_0/gate"] == "all of it"
    assert words("encoder/block/feed_forward_0/wi", SMALL, DENSE) == (
        "copied: new, feed_forward_1[0], new, feed_forward_1[1]"
    )


def test_a_weight_of_another_shape_is_new_and_the_old_one_is_left_out():
    wider = dataclasses.replace(SMALL, hidden_dim=32)
    name = "decoder/block/feed_forward_1/wi"
    assert words(name, SMALL, wider) == "new: it is 1x16x24 in the run"
    assert left_out(between(SMALL, wider), declared(SMALL))[name] == "all of it"
    # The norm of the layer fits.
    assert words("decoder/block/feed_forward_1/norm/scale", SMALL, wider) == "copied"
    relative = dataclasses.replace(SMALL, positions="learned")
    unused = left_out(between(SMALL, relative), declared(SMALL))
    assert unused["decoder/block/self_attention_0/relative_bias"] == "all of it"
