"""A run goes on with another number of devices at each start, and ends as a run that never changed."""

import pytest

from gshard_nmt import train
from gshard_nmt.run.checkpoint import Checkpoints
from gshard_nmt.spmd.lowering import ArraySpec
from tests.run.checkpoints import whole_state
from tests.test_train_faults import ReadingStep, ReadingSteps
from tests.test_train_loop import CONFIG as SMALL
from tests.test_train_loop import prepared

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
        weight = super().state_specs["parameters/w"]
        return super().state_specs | {"parameters/w": ArraySpec((8,), weight.dtype, "E")}

    @property
    def train_step(self):
        return SplitStep(self)


class SplitStep(ReadingStep):
    """Notes the number of devices, and the number of weights that each of them has."""

    def __call__(self, state, batch, control):
        shards = [shard.data.size for shard in state["parameters/w"].addressable_shards]
        splits.append(shards)
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
    assert splits == [[8 // count] * count for count in devices for _ in range(2)]
    expected, _ = whole_state(tmp_path / "undisturbed" / "checkpoints")
    arrays, _ = whole_state(tmp_path / "run" / "checkpoints")
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert arrays[name].tobytes() == array.tobytes(), name
    assert expected["parameters/w"].all()
