"""The papers' models: each config has the printed size, fits its mesh, and trains at a reduced size.

The training steps run eagerly and without a mesh. Counts are of weight matrices, without norm scales and
position tables. Sources: GShard (arXiv 2006.16668) tables 1 to 3, GSPMD (arXiv 2105.04663) tables 2, 3,
6 and 7, the Switch Transformer (arXiv 2101.03961) table 9, and NLLB (arXiv 2207.04672). Dimensions that
the papers do not print are chosen so that the printed sizes come out.
"""

import dataclasses
import functools
import math
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.model.steps import BATCH_ARRAYS, StepFunctions
from gshard_nmt.run.arrays import training_arrays
from gshard_nmt.settings.divides import check_divides
from gshard_nmt.settings.gin_reader import load_config
from tests.model.examples import CONTROL
from tests.model.parameter_kinds import count_by_kind

MATRICES = ("experts", "gates", "attention", "feed_forward", "embeddings")
LAYERS = ("experts", "attention", "feed_forward")
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Family:
    """The size of a model, as a paper prints it and as it is derived."""

    printed: float  # the size that the paper prints
    unit: float  # the unit of the printed size: 1e9 or 2**30
    counted: tuple[str, ...]  # the kinds of weights that the derivation counts
    weights: int  # the number of these weights, to the unit


def decimal(printed: float, weights: int, counted=MATRICES) -> Family:
    return Family(printed, 1e9, counted, weights)


def binary(printed: float, weights: int, counted=LAYERS) -> Family:
    return Family(printed, GIB, counted, weights)


def sparse_language_model(experts: int) -> int:
    """GSPMD table 6: 36 attentions, 18 feed-forwards, 18 MoE layers with their gates, one embedding."""
    attention, feed_forward = 4 * 1024 * 16 * 128, 2 * 1024 * 8192
    moe = experts * (feed_forward + 1024)
    return 36 * attention + 18 * feed_forward + 18 * moe + 32_000 * 1024


def dense_switch_layers(depth: int, model_dim: int, hidden_dim: int, heads: int) -> int:
    """Switch table 9: an encoder and a decoder of `depth` layers, with gated feed-forwards."""
    return depth * model_dim * (3 * 4 * heads * 64 + 2 * 3 * hidden_dim)


FAMILIES = {
    "moe_2048e_36l": decimal(600, 619366318080),
    "moe_2048e_12l": decimal(200, 206520975360),
    "moe_512e_36l": decimal(150, 155481538560),
    "moe_512e_12l": decimal(50, 51892715520),
    # In units of 2**30, as in GSPMD, these fit better than in billions (39.5 and 13.2).
    "moe_128e_36l": binary(37, 39510343680, MATRICES),
    "moe_128e_12l": binary(12.5, 13235650560, MATRICES),
    "moe_2048e_60l": decimal(1000, 1032211660800),
    "dense_96l": decimal(2.3, 2312896512),
    "dense_96l_gpipe": decimal(2.3, 2312896512),
    # Attention, feed-forward and two embeddings. The GPipe paper prints 6 billion.
    "dense_128l": decimal(6.0, 192 * 4 * 1024 * 32 * 64 + 128 * 2 * 1024 * 16384 + 96_000 * 1024),
    "bilingual_big": decimal(0.4, 375128064),
    # The paper prints no size for the Base layout: 18 attentions, 12 feed-forwards, two embeddings.
    "bilingual_base": decimal(0.1, 18 * 4 * 512**2 + 12 * 2 * 512 * 2048 + 96_000 * 512),
    # The printed sizes of the dense models fit the weights of their layers.
    "t5_base": decimal(0.2, dense_switch_layers(12, 768, 2048, 12), LAYERS),
    "t5_large": decimal(0.7, dense_switch_layers(24, 1024, 2816, 16), LAYERS),
    "t5_xxl": decimal(11, dense_switch_layers(24, 4096, 10240, 64), LAYERS),
    "switch_base": decimal(7, 7439843328),
    "switch_large": decimal(26, 27153661952),
    "switch_xxl": decimal(395, 394674569216),
    "switch_c": decimal(1571, 1571375636480),
    "gspmd_moe_10b": binary(10, sparse_language_model(32), MATRICES),
    "gspmd_moe_37b": binary(37, sparse_language_model(128), MATRICES),
    "gspmd_moe_145b": binary(145, sparse_language_model(512), MATRICES),
    "gspmd_moe_577b": binary(577, sparse_language_model(2048), MATRICES),
    "gspmd_hybrid_33b": binary(33, 35433480192),
    "gspmd_hybrid_57b": binary(57, 61203283968),
    "gspmd_hybrid_420b": binary(420, 450971566080),
    "gspmd_hybrid_804b": binary(804, 863288426496),
    "gspmd_dense_64b": binary(64, 68719476736),
    "gspmd_dense_128b": binary(128, 137438953472),
    "gspmd_dense_256b": binary(256, 274877906944),
    "gspmd_dense_512b": binary(512, 549755813888),
    "gspmd_dense_1t": binary(1024, 1099511627776),
    "nllb_moe_54b": decimal(54.5, 54500069376),
    "gspmd_narrow_16b": binary(16, 17179869184),
    "gspmd_narrow_16b_pipeline": binary(16, 17179869184),
}


@functools.cache
def steps_of(name: str) -> StepFunctions:
    config = load_config(name)
    data = config.data
    return StepFunctions(
        config.model, config.optimizer, data.source_vocabulary, data.target_vocabulary
    )


def counts_of(name: str) -> dict[str, int]:
    return count_by_kind(steps_of(name).declare_parameters())


@pytest.mark.parametrize(("name", "family"), FAMILIES.items())
def test_a_family_has_the_papers_number_of_weights(name, family):
    counts = counts_of(name)
    assert sum(counts[kind] for kind in family.counted) == family.weights
    # The papers print round numbers: 7 for 7.25 billion, 0.4 for 0.375 billion.
    assert family.weights / family.unit == pytest.approx(family.printed, rel=0.07)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_fits_its_mesh(name):
    config, steps = load_config(name), steps_of(name)
    check_divides(config, training_arrays(config, steps))


def reduced(steps: StepFunctions) -> StepFunctions:
    """The same model, small: two blocks of each stack, and every size cut down."""
    model = steps.model
    small = dataclasses.replace(
        model,
        encoder_layers=min(2 * model.block_layers("encoder"), model.encoder_layers),
        decoder_layers=2 * model.block_layers("decoder"),
        model_dim=8,
        hidden_dim=16,
        heads=2,
        head_dim=4,
        experts=4 if model.experts else 0,
        num_groups=2,
        stages=min(model.stages, 2),
    )
    return dataclasses.replace(steps, model=small, source_vocabulary=16, target_vocabulary=16)


def batch() -> dict[str, tf.Tensor]:
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(4, 16, (2, 6)) for name in BATCH_ARRAYS}
    for side in ("source", "target"):
        arrays[f"{side}_segments"] = [[1, 1, 1, 2, 2, 0]] * 2
        arrays[f"{side}_positions"] = [[0, 1, 2, 0, 1, 0]] * 2
        arrays[f"{side}_languages"] = [[1, 1, 1, 1, 1, 0]] * 2
    return {name: tf.constant(array, tf.int32) for name, array in arrays.items()}


def trained(steps: StepFunctions) -> tuple[list[float], dict[str, tf.Tensor]]:
    """The losses of two steps, and the state after them; executed eagerly."""
    (state,) = steps.initialize(CONTROL)
    losses = []
    for _ in range(2):
        state, metrics = steps.train_step(state, batch(), CONTROL)
        losses.append(float(metrics["loss"]))
    return losses, state


@pytest.mark.parametrize(
    "name",
    [
        # Others differ from these in size alone.
        *("moe_2048e_36l", "dense_96l_gpipe", "bilingual_big", "nllb_moe_54b", "t5_base"),
        "switch_c",
        *("gspmd_dense_64b", "gspmd_moe_10b", "gspmd_hybrid_33b", "gspmd_narrow_16b_pipeline"),
    ],
)
def test_a_family_trains_two_steps_at_a_reduced_size(name):
    steps = reduced(steps_of(name))
    losses, state = trained(steps)
    assert all(math.isfinite(loss) for loss in losses)
    assert int(state["step"]) == 2
    assert state["tokens"].numpy().tolist() == [[40, 0]]
    declared = steps.declare_state()
    assert set(state) == set(declared)
    for array, p in declared.items():
        value = state[array].numpy()
        assert value.shape == p.shape, array
        assert value.dtype == p.dtype, array
        assert np.isfinite(value).all(), array


def test_the_documentation_lists_what_is_built():
    page = (pathlib.Path(__file__).parents[2] / "docs" / "model.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", page, re.M))
    assert {name for name in rows if name in FAMILIES} == set(FAMILIES)
    for name, family in FAMILIES.items():
        counts = counts_of(name)
        whole = sum(counts[kind] for kind in MATRICES)
        apart = counts["norms"] + counts["positions"]
        expected = f"{whole:,} | {whole / family.unit:.1f} | {family.weights:,} | {apart:,}"
        assert rows[name] == expected, name
