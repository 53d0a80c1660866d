import pytest

from gshard_nmt.inspection.origin import origin_of

PREFIX = "jit(call)/lowered_program/"


@pytest.mark.parametrize(
    ("op_name", "layer", "part", "kind", "direction"),
    [
        (
            "decoder_3_moe_0/gating/Softmax",
            "decoder 3 moe_0",
            "gating",
            "gating",
            "forward",
        ),
        (
            "gradient_tape/decoder_3_moe_0/experts/einsum_4/Einsum_1",
            "decoder 3 moe_0",
            "experts",
            "experts",
            "backward",
        ),
        # The projection to the gates' logits is one of the paper's gate einsums.
        ("encoder_0_moe_0/gating/einsum/Einsum", "encoder 0 moe_0", "gating", "gate einsums", "forward"),
        ("encoder_0_moe_0/dispatch/einsum/Einsum", "encoder 0 moe_0", "dispatch", "gate einsums",
         "forward"),
        ("encoder_0_moe_0/shared_expert/wi/Einsum", "encoder 0 moe_0", "shared_expert",
         "feed-forward", "forward"),
        # Inside a loop over the blocks there is no repeat.
        ("while_1/decoder_moe_0/combine/transpose_1", "decoder moe_0", "combine",
         "dispatch and combine", "forward"),
        ("encoder_1_cross_attention_0/Sum", "encoder 1 cross_attention_0", "Sum", "attention", "forward"),
        ("while/encoder_feed_forward_1/Relu", "encoder feed_forward_1", "Relu", "feed-forward",
         "forward"),
        ("adafactor/Mean_3", "", "adafactor", "optimizer", "forward"),
        ("guard/SelectV2_7", "", "guard", "optimizer", "forward"),
        ("ema/add_3", "", "ema", "optimizer", "forward"),
        ("token_counts/Sum", "", "token_counts", "gradients and metrics", "forward"),
        ("gradient_tape/loss/mul/Mul", "", "loss", "embedding and loss", "backward"),
        ("gradient_tape/einsum/Einsum_1", "", "embedding and logits", "embedding and loss", "backward"),
        ("UnsortedSegmentSum", "", "embedding and logits", "embedding and loss", "backward"),
        # The gradient of what was computed again belongs to the backward pass.
        ("while_3/recomputed_1/encoder_moe_0/gating/Softmax", "encoder moe_0", "gating", "gating",
         "recomputed"),
        ("gradient_tape/while_3/recomputed/encoder_feed_forward_1/Mul_1", "encoder feed_forward_1",
         "Mul", "feed-forward", "backward"),
        # The gate's own product, forward and backward.
        ("while/encoder_moe_0/gating/XlaDot", "encoder moe_0", "gating", "gate einsums", "forward"),
        ("while_2/gradient_tape/encoder_moe_0/gating/einsum_1/Einsum", "encoder moe_0", "gating",
         "gate einsums", "backward"),
        ("while/accumulation/add_3", "", "accumulation", "gradients and metrics", "forward"),
        ("AddN_4", "", "gradient norm", "gradients and metrics", "forward"),
    ],
)  # fmt: skip
def test_the_name_of_an_operation_gives_its_origin(op_name, layer, part, kind, direction):
    origin = origin_of(PREFIX + op_name)
    assert (origin.layer, origin.part, origin.kind, origin.direction) == (
        layer,
        part,
        kind,
        direction,
    )


def test_an_operation_without_a_name_has_an_unknown_origin():
    assert origin_of("").kind == "other"


def test_the_place_of_an_origin_is_a_short_name():
    origin = origin_of(PREFIX + "gradient_tape/decoder_3_moe_0/experts/einsum_4/Einsum_1")
    assert origin.place == "decoder 3 moe_0, experts (backward)"
    assert origin_of(PREFIX + "adafactor/Mean").place == "adafactor"
