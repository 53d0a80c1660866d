"""gshard-inspect --equivalence: a config on one CPU device and on a mesh of several."""

import numpy as np
import pytest

from gshard_nmt.checks import equivalence
from gshard_nmt.errors import UserError
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


def test_a_config_computes_on_a_mesh_what_it_computes_on_one_device(capsys):
    mesh = ("Mesh.axes = ('x', 'y')", "Mesh.shape = (2, 2)")
    rules = "Mesh.rules = {'B': 'x', 'G': 'x', 'E': 'x', 'H': 'y', 'N': 'y'}"
    equivalence.show_equivalence(load_config("demo", [*SMALL, *mesh, rules]), "demo", 4)
    out = capsys.readouterr().out
    assert "encoder/block/moe_0/wi [0]" in out
    assert "DIFFERENT" not in out
    assert "on 1 device and on 4 (x=2 x y=2) are equal within" in out


def test_a_difference_is_named_and_is_an_error(monkeypatch):
    comparisons = [
        equivalence.Comparison("loss", 1e-7, 5e-5),
        equivalence.Comparison("encoder/block/moe_0/gate [0]", 0.3, 5e-5),
        equivalence.Comparison("source_embedding", float("nan"), 5e-5),
    ]
    monkeypatch.setattr(equivalence, "compare", lambda *arguments: comparisons)
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
