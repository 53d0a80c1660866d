"""gshard-inspect --equivalence: a config on one CPU device and on a mesh of several."""

import functools

import numpy as np
import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.inspection import equivalence
from gshard_nmt.run.arrays import batch_specs, step_functions, weight_specs
from gshard_nmt.run.compiled_steps import CompiledSteps
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime

SMALL = (
    "Model.model_dim = 16",
    "Model.hidden_dim = 32",
    "Model.expert_hidden_dim = 32",
    "Model.heads = 2",
    "Model.head_dim = 8",
    "Data.rows = 8",
    *(f"Data.{side}_length = 16" for side in ("source", "target")),
    *(f"Data.{side}_vocabulary = 320" for side in ("source", "target")),
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
    mesh += ("Model.expert_stacks = 'decoder'",)
    rules = "Mesh.rules = {'B': 'x', 'G': 'x', 'E': 'x', 'H': 'y', 'N': 'y'}"
    order = "Mesh.device_order = (3, 1, 0, 2)"
    equivalence.show_equivalence(load_config("demo", [*SMALL, *mesh, rules, order]), "demo", 4)
    out = capsys.readouterr().out
    assert "decoder/block/moe_0/wi [0]" in out
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
        return {"loss": difference}, is_tie

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
    differences = {
        "loss": 1e-7,
        "encoder/block/moe_0/gate [0]": 0.3,
        "source_embedding": float("nan"),
    }
    monkeypatch.setattr(equivalence, "compare", lambda *arguments: (differences, False))
    with pytest.raises(
        UserError, match=r"2 of 3 tensors differ .* the first is encoder/block/moe_0/gate"
    ):
        equivalence.show_equivalence(load_config("demo", SMALL), "demo", 2)


@pytest.mark.parametrize(
    ("settings", "devices"),
    [
        (["Mesh.shape = (6,)"], 4),
        (["Model.group_size = 16", "Mesh.shape = (8,)", "Mesh.rules = {'G': 'x', 'E': 'x'}"], 8),
        (
            [
                "Model.num_groups = 5",
                "Data.rows = 40",
                "Mesh.shape = (2,)",
                "Mesh.rules = {'B': 'x'}",
            ],
            2,
        ),
    ],
)
def test_odd_sizes_are_reduced_to_what_divides(settings, devices):
    two = load_config("demo", ["Mesh.axes = ('x', 'y')", "Mesh.shape = (2, 3)", "Mesh.rules = {}"])
    assert equivalence.reduced_config(two, 8).mesh.shape == (4, 2)
    config = load_config("demo", settings)
    assert equivalence.reduced_config(config).mesh.num_devices == devices


@pytest.mark.parametrize(
    ("name", "devices"),
    [("demo", 4), ("moe_2048e_36l", 8), ("gspmd_hybrid_57b", 4), ("dense_128l", 8)],
)
def test_a_reduced_config_is_small_and_keeps_what_is_split(name, devices):
    config = load_config(name)
    reduced = equivalence.reduced_config(config, devices)
    model, mesh = reduced.model, reduced.mesh
    assert mesh.num_devices == devices
    assert (model.activation_dtype, model.matmul_precision) == ("float32", "default")
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


def test_a_reduced_pipeline_has_whole_stages():
    layers = ["Model.encoder_layers = 6", "Model.decoder_layers = 6"]
    pipeline = load_config("demo", [*layers, "Model.stack = 'pipeline'", "Model.stages = 3"])
    assert equivalence.reduced_config(pipeline, 2).model.encoder_layers == 4


@pytest.mark.parametrize("has_ties", [False, True])
def test_a_change_by_rounding_changes_the_gradients_only_if_experts_are_tied(has_ties, monkeypatch):
    config = equivalence.reduced_config(load_config("demo", [*LAYERS, "Mesh.shape = (1,)"]), 1)
    programs = CompiledSteps(config, step_functions(config), runtime.start(config.mesh))
    batch = equivalence.random_batch(list(batch_specs(config)), config.data.rows)
    if has_ties:
        state = programs.initialize()
        gate = "parameters/encoder/block/moe_0/gate"
        equal = np.repeat(np.asarray(state[gate])[..., :1], state[gate].shape[-1], axis=-1)
        state |= programs.devices.put({gate: equal}, programs.state_specs)
        monkeypatch.setattr(CompiledSteps, "initialize", lambda self: dict(state))
    step = equivalence.first_step(programs, batch)
    expected = step(0)
    for trial in (1, 2):
        differences = equivalence.relative_differences(expected, step(trial), ())
        assert (max(differences.values()) > equivalence.TOLERANCE) == has_ties
