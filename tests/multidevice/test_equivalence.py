"""gshard-inspect --equivalence: a config on one CPU device and on a mesh of several."""

import functools

import numpy as np
import pytest

from gshard_nmt.checks import equivalence
from gshard_nmt.errors import UserError
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.settings.gin_reader import load_config

SMALL = (
    "Model.model_dim = 16",
    "Model.hidden_dim = 32",
    "Model.expert_hidden_dim = 32",
    "Model.heads = 2",
    "Model.head_dim = 8",
    "Data.rows = 8",
    "Data.source_length = 16",
    "Data.target_length = 16",
    "Data.source_vocabulary = 320",
    "Data.target_vocabulary = 320",
)


LAYERS = ("Model.encoder_layers = 1", "Model.decoder_layers = 1", "Model.moe_every = 1")
OTHER_SYSTEMS = (
    "Model.biases = True",
    "Model.output_bias = True",
    "Model.norm = 'layer'",
    "Model.norm_place = 'after'",
    "Model.activation = 'geglu'",
    "Model.positions = 'learned'",
    "Model.max_positions = 16",
    "Model.shared_embedding = True",
    "Model.shared_expert_dim = 32",
    "Model.moe_place = 'last'",
    "Data.vocabulary = 'joint'",
)


def test_a_config_computes_on_a_mesh_what_it_computes_on_one_device(capsys):
    mesh = (*LAYERS, *OTHER_SYSTEMS, "Mesh.axes = ('x', 'y')", "Mesh.shape = (2, 2)")
    rules = "Mesh.rules = {'B': 'x', 'G': 'x', 'E': 'x', 'H': 'y', 'N': 'y'}"
    equivalence.show_equivalence(load_config("demo", [*SMALL, *mesh, rules]), "demo", 4)
    out = capsys.readouterr().out
    assert "encoder/block/moe_0/wi [0]" in out
    assert "encoder/block/self_attention_0/key_bias [0]" in out
    assert "DIFFERENT" not in out
    assert "on 1 device and on 4 (x=2 x y=2) are equal within" in out


@pytest.mark.parametrize("ties", [1, equivalence.SEEDS])
def test_the_next_seed_is_tried_if_rounding_moves_a_token(capsys, monkeypatch, ties):
    seeds = []

    def compare(config, *others):
        seeds.append(config.train.seed)
        is_tie = len(seeds) <= ties
        difference = 0.3 if is_tie else 1e-7
        comparisons = [equivalence.Comparison("loss", difference, 5e-5)]
        return comparisons, "1 of 99 tokens" if is_tie else ""

    monkeypatch.setattr(equivalence, "compare", compare)
    show = functools.partial(
        equivalence.show_equivalence, load_config("demo", [*SMALL, "Train.seed = 7"]), "demo", 2
    )
    if ties < equivalence.SEEDS:
        show()
        assert "are equal within" in capsys.readouterr().out
    else:
        with pytest.raises(UserError, match=r"tried 4 seeds\. With each of them tensors differ"):
            show()
    assert seeds == [7, 8, 9, 10][: ties + 1]


def test_a_difference_is_named_and_is_an_error(monkeypatch):
    comparisons = [
        equivalence.Comparison("loss", 1e-7, 5e-5),
        equivalence.Comparison("encoder/block/moe_0/gate [0]", 0.3, 5e-5),
        equivalence.Comparison("source_embedding", float("nan"), 5e-5),
    ]
    monkeypatch.setattr(equivalence, "compare", lambda *arguments: (comparisons, ""))
    with pytest.raises(
        UserError, match=r"2 of 3 tensors differ .* the first is encoder/block/moe_0/gate"
    ):
        equivalence.show_equivalence(load_config("demo", SMALL), "demo", 2)


def test_a_reduced_batch_is_packed_and_padded():
    batch = equivalence.random_batch(["source_ids", "source_segments", "source_positions"], 4)
    segments, positions = batch["source_segments"], batch["source_positions"]
    assert {tuple(np.unique(row)) for row in segments} == {(0, 1, 2)}
    starts = (segments[:, 1:] != segments[:, :-1]) | (segments[:, 1:] == 0)
    assert (positions[:, 1:][starts] == 0).all()


@pytest.mark.parametrize("name", ["demo", "moe_2048e_36l", "gspmd_hybrid_57b", "dense_128l"])
@pytest.mark.parametrize("devices", [4, 8])
def test_a_reduced_config_is_small_and_keeps_what_is_split(name, devices):
    config = load_config(name)
    reduced = equivalence.reduced_config(config, devices)
    model, mesh = reduced.model, reduced.mesh
    assert mesh.num_devices == devices
    assert model.activation_dtype == "float32"
    assert (model.routing, model.moe_every) == (config.model.routing, config.model.moe_every)
    assert model.stages == mesh.axis_size(mesh.partition("P")[0])
    assert model.encoder_layers <= 2 * model.stages * config.model.block_layers("encoder")
    sizes = [
        model.experts,
        model.model_dim,
        model.expert_hidden_dim,
        reduced.data.source_vocabulary,
    ]
    assert max(sizes) <= 320
    specs, before = (weight_specs(step_functions(c)) for c in (reduced, config))
    for weight in specs.keys() & before.keys():
        letters = before[weight].letters
        assert specs[weight].letters == letters
        assert mesh.partition(letters, weight) == config.mesh.partition(letters, weight)


def test_a_dimension_that_is_split_has_at_least_one_entry_for_each_device():
    rules = "Mesh.rules = {'B': 'x', 'G': 'x', 'E': 'x', 'N': 'x'}"
    config = load_config("demo", ["Mesh.shape = (8,)", "Model.heads = 8", "Data.rows = 32", rules])
    assert equivalence.reduced_config(config).model.heads == 8
    whole = load_config("demo", ["Mesh.shape = (8,)", "Model.heads = 8", "Data.rows = 32"])
    assert equivalence.reduced_config(whole).model.heads == 4


def test_a_reduced_config_has_two_of_many_microbatches():
    settings = ["Train.microbatches = 4", "Data.rows = 16", "Model.num_groups = 16"]
    config = load_config("demo", [*settings, "Mesh.shape = (4,)"])
    reduced = equivalence.reduced_config(config)
    assert reduced.train.microbatches == 2
    assert (reduced.data.rows, reduced.model.num_groups) == (16, 16)


def test_a_difference_is_relative_to_the_largest_value():
    expected, actual = np.array([4.0, 0.5]), np.array([4.0, 0.6])
    comparison = equivalence._compared("w", expected, actual, expected, tolerance=0.03)
    assert comparison.difference == pytest.approx(0.1 / 4)
    assert comparison.is_equal
    assert not equivalence._compared("w", expected, actual, expected, tolerance=0.02).is_equal
    # A tensor of zeros has no largest value.
    zeros = np.zeros(2)
    assert equivalence._compared("w", zeros, zeros, zeros, 0.0).is_equal
    assert not equivalence._compared("w", zeros, actual, zeros, 1e-3).is_equal
    assert not equivalence._compared("w", expected, actual * np.nan, expected, 1e3).is_equal
