"""A run goes on with another number of devices at each start, and ends as a run that never changed."""

import json

import numpy as np
import pytest

from gshard_nmt import train
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.spmd.lowering import ArraySpec
from tests.model.examples import LAYERS
from tests.run.checkpoints import whole_state
from tests.test_train_faults import ReadingStep, ReadingSteps
from tests.train_loop import CONFIG as SMALL
from tests.train_loop import prepared

__all__ = ["prepared"]

CONFIG = SMALL.replace(data={"rows": 8}, model={"num_groups": 8, "experts": 8})
MESHES = (
    {"shape": (1,)},
    {"shape": (2,)},
    {"axes": ("x", "y"), "shape": (2, 2), "rules": {"B": ("x", "y"), "E": ("x", "y")}},
    {"shape": (8,)},
)


class EightWeights(ReadingSteps):
    """Every device of the largest mesh has a weight."""

    @property
    def state_specs(self):
        specs = super().state_specs
        weight = ArraySpec((8,), specs["parameters/w"].dtype, "E")
        return specs | {"parameters/w": weight, "ema/w": weight}

    @property
    def train_step(self):
        return SplitStep(self)


class SplitStep(ReadingStep):
    """Notes the number of devices, and how many weights and averages each of them has."""

    def __call__(self, state, batch, control):
        for name in ("parameters/w", "ema/w"):
            splits.append([shard.data.size for shard in state[name].addressable_shards])
        return super().__call__(state, batch, control)


splits: list[list[int]] = []


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0, 3)])
def test_a_run_restarts_on_1_2_4_and_8_devices_and_back(prepared, tmp_path, monkeypatch, order):
    monkeypatch.setattr(train, "CompiledSteps", EightWeights)
    config = CONFIG.replace(train={"steps": 2 * len(order)})
    assert train.train(config, prepared.folder, tmp_path / "undisturbed")
    splits.clear()
    for start, mesh in enumerate(order, 1):
        part = config.replace(mesh=MESHES[mesh], train={"steps": 2 * start})
        assert train.train(part, prepared.folder, tmp_path / "run")
        assert Checkpoints(tmp_path / "run" / "checkpoints").steps()[-1] == 2 * start
    devices = [(1, 2, 4, 8)[mesh] for mesh in order]
    assert splits == [[8 // count] * count for count in devices for _ in range(2 * 2)]
    expected, _ = whole_state(tmp_path / "undisturbed" / "checkpoints")
    arrays, _ = whole_state(tmp_path / "run" / "checkpoints")
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert arrays[name].tobytes() == array.tobytes(), name
    assert expected["parameters/w"].all()
    assert expected["ema/w"].all()


@pytest.mark.slow
def test_a_schedule_has_the_same_batches_on_1_4_and_8_devices(prepared, tmp_path, monkeypatch):
    batches: list[dict[str, bytes]] = []

    class Recorded(TrainBatches):
        def __next__(self):
            arrays = super().__next__()
            batches.append({name: array.tobytes() for name, array in arrays.items()})
            return arrays

    monkeypatch.setattr(train, "TrainBatches", Recorded)
    schedule = (
        {"from_step": 0, "weights": {"de": 0.0}},
        {"from_step": 1, "temperature": 1.0},
        {"from_step": 3, "weights": {"fr": 0.0}},
    )
    small = {"model_dim": 32, "hidden_dim": 32, "expert_hidden_dim": 32, "heads": 2, "head_dim": 16}
    # Operands in bfloat16 would be rounded after sums in another order.
    small["matmul_precision"] = "default"
    config = CONFIG.replace(
        data={"schedule": schedule, "packing_window": 1},
        model=small | LAYERS,
        mesh=MESHES[0],
        train={"steps": 6},
        optimizer={"cooldown_steps": 0},
    )
    assert train.train(config, prepared.folder, tmp_path / "undisturbed")
    expected = [*batches]
    batches.clear()
    for start, mesh in enumerate((MESHES[0], *MESHES[2:]), 1):
        part = config.replace(mesh=mesh, train={"steps": 2 * start})
        assert train.train(part, prepared.folder, tmp_path / "run")
    assert batches == expected
    languages = [set(np.frombuffer(b["target_languages"], np.int32).tolist()) for b in batches]
    french, german = 1, 2
    assert languages[0] == {0, french}
    assert languages[-1] == {0, german}
    assert any({french, german} <= both for both in languages)
    # The sums have another order on another mesh.
    runs = [RunFolder(tmp_path / name) for name in ("run", "undisturbed")]
    losses = [
        [json.loads(line)["loss"] for line in run.metrics.read_text().splitlines()] for run in runs
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    budgets = [run.budget() for run in runs]
    assert budgets[0]["tokens_by_language"] == budgets[1]["tokens_by_language"]
