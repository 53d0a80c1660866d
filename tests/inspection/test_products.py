"""The products of a step, read from a trace of the step, against counts by hand."""

import math

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.inspection.products import Step, step_of
from gshard_nmt.run.arrays import step_functions, training_arrays
from gshard_nmt.settings.gin_reader import load_config


def step(name: str = "demo", *settings: str) -> Step:
    config = load_config(name, settings)
    return step_of(config, training_arrays(config, step_functions(config)), rounds_operands=True)


def forward_flops(products) -> int:
    total = 0
    for product in products:
        sizes = {}
        for tensor in (product.left, product.right, product.result):
            sizes |= dict(zip(tensor.letters, tensor.shape, strict=True))
        total += 2 * math.prod(sizes.values()) * product.times * min(1, product.passes)
    return total


def test_a_dense_step_has_two_flops_for_each_weight_and_token_and_those_of_attention():
    narrow = step("gspmd_narrow_16b")
    tokens, layers = 96 * 1024, 64
    weights = layers * (4 * 4096 * 64 * 128 + 2 * 4096 * 16384) + 32000 * 4096
    attention = layers * 2 * 64 * 128 * 1024  # each query meets all keys, twice
    assert forward_flops(narrow.products) == 2 * tokens * (weights + attention)


def test_every_matrix_of_a_model_with_experts_has_a_product():
    demo = step("demo", "Model.dispatch = 'einsum'")
    matrices = {name for name, spec in demo.weights.items() if len(spec.letters.strip("R")) > 1}
    multiplied = {product.right.weight for product in demo.products} - {""}
    assert matrices - multiplied == {
        f"{stack}/block/self_attention_{layer}/relative_bias"
        for stack in ("encoder", "decoder")
        for layer in (0, 1)
    }
    # Dispatch and combine, in the encoder and in the decoder.
    assert len(demo.exchanges) == 4
    assert {before.shape[0] for before, _, _ in demo.exchanges} == {8}


def test_a_pipeline_has_no_formula():
    with pytest.raises(UserError, match=r"--advise: Model\.stack is 'pipeline'"):
        step("gspmd_narrow_16b_pipeline")
