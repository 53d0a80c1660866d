import pytest

from gshard_nmt.inspection.origin import origin_of

PREFIX = "jit(call)/lowered_program/"


@pytest.mark.parametrize(
    ("op_name", "layer", "part", "kind", "backward"),
    [
        (
            "decoder_3_moe_0/gating/Softmax",
            "decoder 3 moe_0",
            "gating",
            "gating",
            False,
        ),
        (
            "gradient_tape/decoder_3_moe_0/experts/einsum_4/Einsum_1",
            "decoder 3 moe_0",
            "experts",
            "experts",
            True,
        ),
        # The projection to the gates' logits is one of the paper's gate einsums.
        ("encoder_0_moe_0/gating/einsum/Einsum", "encoder 0 moe_0", "gating", "gate einsums", False),
        ("encoder_0_moe_0/dispatch/einsum/Einsum", "encoder 0 moe_0", "dispatch", "gate einsums", False),
        # Inside a loop over the blocks there is no repeat.
        ("while_1/decoder_moe_0/combine/transpose_1", "decoder moe_0", "combine", "gate einsums", False),
        ("encoder_1_cross_attention_0/Sum", "encoder 1 cross_attention_0", "Sum", "attention", False),
        ("while/encoder_feed_forward_1/Relu", "encoder feed_forward_1", "Relu", "feed-forward", False),
        ("adafactor/Mean_3", "", "adafactor", "optimizer", False),
        ("gradient_tape/loss/mul/Mul", "", "loss", "embedding and loss", True),
        ("gradient_tape/einsum/Einsum_1", "", "embedding and logits", "embedding and loss", True),
        ("UnsortedSegmentSum", "", "embedding and logits", "embedding and loss", True),
        ("AddN_4", "", "gradient norm", "gradients and metrics", False),
    ],
)  # fmt: skip
def test_an_operations_name_says_where_it_comes_from(op_name, layer, part, kind, backward):
    origin = origin_of(PREFIX + op_name)
    assert (origin.layer, origin.part, origin.kind, origin.backward) == (
        layer,
        part,
        kind,
        backward,
    )


def test_without_a_name_nothing_is_claimed():
    assert origin_of("").kind == "other"


def test_where_reads_as_a_place():
    origin = origin_of(PREFIX + "gradient_tape/decoder_3_moe_0/experts/einsum_4/Einsum_1")
    assert origin.where == "decoder 3 moe_0, experts (backward)"
    assert origin_of(PREFIX + "adafactor/Mean").where == "adafactor"
