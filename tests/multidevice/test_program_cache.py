"""Which lowered program a run folder's cache gives: the one asked for, or none."""

import json

import jax
import numpy as np
import pytest
import tensorflow as tf

from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.lowering import ArraySpec, lower
from gshard_nmt.spmd.mesh import Mesh

SPEC = ArraySpec((4,), np.dtype(np.float32), "B")
PAIR = Mesh(("x",), (2,), rules={"B": "x"})


class Lowering:
    """Lowers x -> factor * x, and counts how often."""

    def __init__(self, factor: float) -> None:
        self.factor, self.count = factor, 0

    def __call__(self):
        self.count += 1
        return lower(
            lambda a: [{"y": a["x"] * tf.constant(self.factor)}], [{"x": SPEC}], [{}], PAIR
        )


@pytest.fixture
def compiled(tmp_path):
    """A function that compiles with a cache, and says what the program gives and if it was lowered."""
    before = jax.config.jax_compilation_cache_dir

    def compile_with(lowering: Lowering, key: str = "key", mesh: Mesh = PAIR) -> tuple[float, bool]:
        count = lowering.count
        devices = runtime.start(mesh, tmp_path)
        program = devices.compile(key, lowering)
        (result,) = program(devices.put({"x": np.ones(4, np.float32)}, {"x": SPEC}))
        return float(np.asarray(result["y"])[0]), lowering.count > count

    yield compile_with
    jax.config.update("jax_compilation_cache_dir", before)


def test_the_same_key_is_lowered_once(compiled):
    assert compiled(Lowering(2.0)) == (2.0, True)
    assert compiled(Lowering(3.0)) == (2.0, False)


def test_another_key_or_mesh_is_another_program(compiled):
    compiled(Lowering(2.0))
    assert compiled(Lowering(3.0), key="other") == (3.0, True)
    assert compiled(Lowering(4.0), mesh=Mesh(("x",), (2,), rules={})) == (4.0, True)


def test_a_program_of_other_code_is_not_used(compiled, monkeypatch):
    compiled(Lowering(2.0))
    monkeypatch.setattr(runtime, "_source_fingerprint", lambda: "changed")
    assert compiled(Lowering(3.0)) == (3.0, True)


def test_a_program_of_another_tensorflow_is_lowered_again(compiled, tmp_path, monkeypatch):
    compiled(Lowering(2.0))
    for description in tmp_path.glob("*.json"):
        text = json.loads(description.read_text()) | {"tensorflow": "0.1"}
        description.write_text(json.dumps(text))
    monkeypatch.setattr(runtime, "_tensorflow_version", lambda: None)
    assert compiled(Lowering(3.0)) == (2.0, False)
    monkeypatch.undo()
    assert compiled(Lowering(3.0)) == (3.0, True)


def test_half_a_program_is_none(compiled, tmp_path):
    compiled(Lowering(2.0))
    for artifact in tmp_path.glob("*.jaxexport"):
        artifact.unlink()
    assert compiled(Lowering(3.0)) == (3.0, True)
