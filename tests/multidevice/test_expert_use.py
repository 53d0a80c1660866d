"""The experts that each language uses: the same counts on one device and on meshes."""

import dataclasses

import numpy as np
import tensorflow as tf

from gshard_nmt.decoding import expert_use
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.mesh import Mesh
from tests.model.examples import WIDTHS

LENGTHS = {"source_length": 16, "target_length": 16}
CONFIG = load_config("demo").replace(
    mesh=Mesh(),
    model={**WIDTHS, "expert_hidden_dim": 32, "experts": 8, "num_groups": 8},
    data={"rows": 8} | LENGTHS | dict.fromkeys(("source_vocabulary", "target_vocabulary"), 320),
)
CROSSED = Mesh(("x", "y"), (2, 4), rules={"B": "x", "G": ("x", "y"), "E": ("y", "x"), "H": "y"})


class Eager:
    """A device that computes every operation at once, and compiles nothing."""

    mesh = Mesh()

    def compile(self, key, lowered):
        return lowered()

    def put(self, arrays, specs):
        return {name: tf.constant(array) for name, array in arrays.items()}

    def fetch(self, arrays):
        return {name: array.numpy() for name, array in arrays.items()}


def counts(mesh: Mesh | None, **model: object) -> expert_use.ExpertUse:
    config = CONFIG.replace(mesh=mesh or Mesh(), model=model)
    functions, rng = step_functions(config), np.random.default_rng(0)
    specs = weight_specs(functions)
    devices = Eager() if mesh is None else runtime.start(mesh)
    weights = {
        name: rng.normal(size=spec.shape, scale=0.3).astype(np.float32)
        for name, spec in sorted(specs.items())
    }
    texts = [
        [
            ([*rng.integers(4 + 60 * i, 64 + 60 * i, 6), 1], [*rng.integers(4, 320, 4), 1])
            for _ in range(15)
        ]
        for i in range(3)
    ]
    return expert_use.count(config, functions, devices, devices.put(weights, specs), texts)


def test_a_mesh_counts_what_eager_operations_count(monkeypatch):
    use = counts(CROSSED, stack="scan")
    monkeypatch.setattr(expert_use, "lower", lambda function, *_: function)
    for name, values in dataclasses.asdict(counts(None)).items():
        if isinstance(values, np.ndarray):
            np.testing.assert_allclose(getattr(use, name), values, rtol=1e-5, err_msg=name)
    assert use.tokens.tolist() == [[105] * 3, [75] * 3]
    # Each language has its own source ids, so the encoder's rows differ; otherwise the test is blind.
    assert np.ptp(use.chosen[0], axis=0).max() > 5
