import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gshard_nmt.inspection import compute, hlo
from gshard_nmt.inspection.compute import origin_of
from gshard_nmt.spmd.topology import CHIPS


def module_of(lines: str, computations: str = "") -> hlo.HloModule:
    return hlo.parse(f"{computations}\nENTRY %main (x: f32[2]) -> f32[2] {{\n{lines}\n}}\n")


def flops_of(lhs: str, rhs: str, operation: str) -> int:
    module = module_of(
        f"  %x = {lhs} parameter(0)\n  %w = {rhs} parameter(1)\n  ROOT %out = {operation}"
    )
    return compute.product_flops(module, module.by_name["out"])


def test_a_dot_costs_two_operations_for_each_product():
    dot = (
        "f32[4,8,32]{2,1,0} dot(%x, %w), lhs_batch_dims={0}, lhs_contracting_dims={2}, "
        "rhs_batch_dims={0}, rhs_contracting_dims={1}"
    )
    assert flops_of("f32[4,8,16]{2,1,0}", "f32[4,16,32]{2,1,0}", dot) == 2 * 4 * 8 * 16 * 32


# Lines of programs that the TPU compiler made, and the products of the einsum that they stand for.
@pytest.mark.parametrize(
    ("lhs", "rhs", "convolution", "products"),
    [
        pytest.param(
            "bf16[16,128,256,1]{2,1,0,3}",
            "bf16[256,4,64,1]{2,1,0,3}",
            "bf16[16,128,4,64]{1,3,2,0} convolution(%x, %w), "
            "window={size=1x4 pad=0_0x3_3 rhs_reversal=0x1}, dim_labels=0bf1_i1o0->0b1f",
            16 * 128 * 256 * 4 * 64,
            id="BLM,MND->BLND: heads are positions of a padded window",
        ),
        pytest.param(
            "f32[4,16,128,64]{3,2,1,0}",
            "f32[4,16,128,64]{3,2,1,0}",
            "f32[4,16,128,128]{3,2,1,0} convolution(%x, %w), "
            "window={size=4x16 stride=3x15 lhs_dilate=4x16}, dim_labels=01bf_01oi->01bf",
            4 * 16 * 128 * 128 * 64,
            id="BNLD,BNTD->BNLT: batch dimensions are dilated windows",
        ),
        pytest.param(
            "f32[16,128,4,64]{1,3,2,0}",
            "f32[4,64,256,1]{2,1,0,3}",
            "f32[16,128,256,1]{2,1,3,0} convolution(%x, %w), window={size=1x4}, "
            "dim_labels=0b1f_1io0->0bf1",
            16 * 128 * 256 * 4 * 64,
            id="BLND,NDM->BLM: heads are a window that is summed over",
        ),
    ],
)
def test_a_convolution_costs_the_products_of_the_einsum_it_is(lhs, rhs, convolution, products):
    assert flops_of(lhs, rhs, convolution) == 2 * products


sizes = st.integers(1, 9)


@given(
    sizes, sizes, sizes, st.integers(1, 5), st.integers(0, 6), st.integers(1, 5), st.integers(1, 3)
)
def test_window_positions_are_those_that_meet_an_element(
    lhs, rhs, out, stride, pad, lhs_dilate, rhs_dilate
):
    meets = 0
    for o, position in itertools.product(range(out), range(rhs)):
        place = o * stride + position * rhs_dilate - pad
        meets += place >= 0 and place % lhs_dilate == 0 and place // lhs_dilate < lhs
    assert compute._valid_positions(lhs, rhs, out, stride, pad, lhs_dilate, rhs_dilate) == meets


STACKED, LAYER, NUMBER = "f32[36,8,128]{2,1,0:T(8,128)}", "f32[1,8,128]{2,1,0:T(8,128)}", "s32[]"
READ = (LAYER, "dynamic-slice(%p0, %p1, %zero, %zero)", (STACKED, NUMBER))
WRITE = (STACKED, "dynamic-update-slice(%p0, %p1, %p2, %zero)", (STACKED, LAYER, NUMBER))


@pytest.mark.parametrize(("result", "root", "kinds"), [READ, WRITE])
def test_a_part_of_stacked_layers_is_read_or_written_alone(result, root, kinds):
    outer, inner = (
        "".join(f"  %{name}{i} = {kind} parameter({i})\n" for i, kind in enumerate(kinds))
        for name in "xp"
    )
    types = ", ".join(f"p{i}: {kind.partition('{')[0]}" for i, kind in enumerate(kinds))
    head = f"%fused ({types}) -> {result.partition('{')[0]} {{"
    fused = f"\n{head}\n{inner}  %zero = s32[] constant(0)\n  ROOT %r = {result} {root}\n}}\n"
    names = ", ".join(f"%x{i}" for i in range(len(kinds)))
    outer += f"  ROOT %out = {result} fusion({names}), kind=kLoop, calls=%fused"
    module, layer = module_of(outer, fused), 8 * 128 * 4
    assert compute.bytes_accessed(module, module.by_name["out"]) == 2 * layer + 4


def test_work_takes_the_compilers_estimate_and_is_kept_by_origin():
    scope = "jit(call)/lowered_program"
    module = module_of(
        "  %x = f32[256,256]{1,0:T(8,128)} parameter(0)\n"
        "  %a = f32[256,256]{1,0:T(8,128)} dot(%x, %x), lhs_contracting_dims={1}, "
        f'rhs_contracting_dims={{0}}, metadata={{op_name="{scope}/encoder_0_feed_forward_1/einsum"}}, '
        'backend_config={"estimated_cycles":"940"}\n'
        "  ROOT %b = f32[256,256]{1,0:T(8,128)} add(%a, %x), "
        f'metadata={{op_name="{scope}/adafactor/add"}}'
    )
    by_origin = compute.work_by_origin(module, CHIPS["v3"])
    work = {origin.kind: work for origin, work in by_origin.items()}
    assert set(work) == {"feed-forward", "optimizer"}
    assert work["feed-forward"].flops == 2 * 256**3
    assert work["feed-forward"].seconds == pytest.approx(1e-6)  # 940 cycles at 940 MHz
    moved = 3 * 256 * 256 * 4
    assert work["optimizer"].seconds == pytest.approx(moved / 450e9)
    assert (work["feed-forward"] + work["optimizer"].times(2)).bytes_accessed == 3 * moved


def test_a_gpu_has_a_peak_for_each_dtype_of_a_product():
    by_dtype = {}
    for dtype in ("f32", "bf16"):
        module = module_of(
            f"  %x = {dtype}[4096,4096]{{1,0}} parameter(0)\n"
            f"  ROOT %a = {dtype}[4096,4096]{{1,0}} dot(%x, %x), lhs_contracting_dims={{1}}, "
            "rhs_contracting_dims={0}"
        )
        work = compute.work_of(module, module.by_name["a"], CHIPS["h100"])
        by_dtype[dtype] = work.roofline_seconds
        assert work.seconds == work.roofline_seconds  # the GPU compiler estimates nothing
    assert by_dtype["bf16"] == pytest.approx(2 * 4096**3 / 989.4e12)
    assert by_dtype["f32"] == pytest.approx(2 * by_dtype["bf16"])


def test_an_unnamed_copy_has_the_origin_of_its_user():
    module = module_of(
        "  %x = f32[8,8]{1,0} parameter(0)\n  %copy = f32[8,8]{0,1} copy(%x)\n"
        "  ROOT %b = f32[8,8]{1,0} add(%copy, %copy), "
        'metadata={op_name="jit(call)/lowered_program/decoder_2_self_attention_1/add"}'
    )
    origin = compute.find_origin(module, module.by_name["copy"])
    assert (origin.layer, origin.kind) == ("decoder 2 self_attention_1", "attention")


@pytest.mark.parametrize(
    ("op_name", "layer", "part", "kind", "direction"),
    [
        ("decoder_3_moe_0/gating/Softmax", "decoder 3 moe_0", "gating", "gating", "forward"),
        ("gradient_tape/decoder_3_moe_0/experts/einsum_4", "decoder 3 moe_0", "experts", "experts",
         "backward"),
        # The projection to the gates' logits is one of the paper's gate einsums.
        ("encoder_0_moe_0/gating/einsum", "encoder 0 moe_0", "gating", "gate einsums", "forward"),
        ("encoder_0_moe_0/dispatch/einsum", "encoder 0 moe_0", "dispatch", "gate einsums",
         "forward"),
        ("encoder_0_moe_0/shared_expert/wi/einsum", "encoder 0 moe_0", "shared_expert",
         "feed-forward", "forward"),
        # A loop over microbatches has the logits too.
        ("while/target_embedding/XlaDotV2", "", "embedding and logits", "embedding and loss", "forward"),
        # Inside a loop over the blocks there is no repeat.
        ("while_1/decoder_moe_0/combine/transpose_1", "decoder moe_0", "combine",
         "dispatch and combine", "forward"),
        ("encoder_1_cross_attention_0/Sum", "encoder 1 cross_attention_0", "Sum", "attention", "forward"),
        ("adafactor/Mean_3", "", "adafactor", "optimizer", "forward"),
        ("token_counts/Sum", "", "token_counts", "gradients and metrics", "forward"),
        ("gradient_tape/loss/mul/Mul", "", "loss", "embedding and loss", "backward"),
        # The gradient of what was computed again belongs to the backward pass.
        ("while_3/recomputed_1/encoder_moe_0/gating/Softmax", "encoder moe_0", "gating", "gating",
         "recomputed"),
        ("gradient_tape/while_3/recomputed/encoder_feed_forward_1/Mul_1", "encoder feed_forward_1",
         "Mul", "feed-forward", "backward"),
        # The gate's own product, forward and backward.
        ("while/encoder_moe_0/gating/XlaDotV2", "encoder moe_0", "gating", "gate einsums", "forward"),
        ("while_2/gradient_tape/encoder_moe_0/gating/einsum_1", "encoder moe_0", "gating",
         "gate einsums", "backward"),
    ],
)  # fmt: skip
def test_the_name_of_an_operation_gives_its_origin(op_name, layer, part, kind, direction):
    origin = origin_of("jit(call)/lowered_program/" + op_name)
    assert (origin.layer, origin.part, origin.kind, origin.direction) == (
        layer,
        part,
        kind,
        direction,
    )
