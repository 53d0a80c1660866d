"""A real search: the same translations and scores, bit for bit, in any company and on any devices."""

from pathlib import Path

import numpy as np
import pytest

from gshard_nmt.decoding.company import Arrangement, Subject, arrangements, compare
from gshard_nmt.decoding.translator import Translator
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import weight_specs
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.mesh import Mesh
from tests.model.examples import LAYERS

EOS, VOCABULARY = 1, 500
# The widths are those of a real model, because kernels for small and for large arrays differ.
WIDTHS = {"model_dim": 128, "hidden_dim": 256, "heads": 4, "head_dim": 32}
CONFIG = load_config("demo").replace(
    mesh=Mesh(),
    model={**LAYERS, **WIDTHS, "experts": 8, "expert_hidden_dim": 256},
    decode={"rows": 16, "source_lengths": (8,), "length_ratio": 1.0, "length_margin": 2},
)


def translator(programs: Path | None = None, **decode: object) -> Translator:
    config = CONFIG.replace(decode=decode)
    functions = StepFunctions(config.model, config.optimizer, VOCABULARY, VOCABULARY)
    devices, specs = runtime.start(config.mesh, programs), weight_specs(functions)
    rng = np.random.default_rng(0)
    scale = {2: 0.02, 1: 1.0}
    weights = {
        name: np.ones(spec.shape, "f")
        if "norm" in name
        else (scale.get(len(spec.shape), 0.1) * rng.normal(size=spec.shape)).astype("f")
        for name, spec in sorted(specs.items())
    }
    weights["target_embedding"] *= 40  # far from uniform
    weights["target_embedding"][EOS] *= 0.1  # otherwise every translation is short
    return Translator(config, functions, devices, devices.put(weights, specs))


def sentences(count: int, longest: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, longest, count)
    return [[*rng.integers(4, VOCABULARY, length).tolist(), EOS] for length in lengths]


def outcomes_of(search: Translator, plans: list[Arrangement], sources: list[list[int]]):
    lengths = search._config.decode.source_lengths
    subject = Subject(sources, range(1, len(sources) + 1), lengths, search.letters)

    def moved(mesh: Mesh, rows: int):
        return search.moved(mesh, rows).translate_ids

    outcomes = list(compare(subject, plans, moved))
    assert len({len(source) for source in sources}) > 3
    return outcomes


def test_a_translation_has_the_same_bits_with_other_neighbors_rows_and_devices():
    plans = [
        Arrangement("alone on a device", Mesh(), 16),
        Arrangement("elsewhere", Mesh(shape=(2,)), 128, seed=1, long_neighbors=True),
    ]
    (_, other) = outcomes_of(translator(), plans, sentences(60, 8))
    assert other.text == "elsewhere: same translations and scores, bit for bit"


@pytest.mark.slow
def test_a_hundred_sentences_in_many_batchings_have_the_same_bits(tmp_path):
    search = translator(tmp_path, source_lengths=(8, 16))
    plans = arrangements(Mesh(), 16, 16, CONFIG.model.experts, is_cpu=True)
    # One number of rows for each number of devices: every other one is two more programs. The test above
    # has two devices.
    plans = [plan for plan in plans if plan.rows == 16 or plan.mesh.num_devices == 8]
    assert {plan.mesh.num_devices for plan in plans} == {1, 8}
    plans += [plans[1 + n % 2]._replace(seed=100 + n) for n in range(7)]
    outcomes = outcomes_of(search, plans, sentences(100, 16))
    assert [outcome.text for outcome in outcomes if not outcome.is_right] == []


@pytest.mark.slow
def test_products_in_bfloat16_have_the_same_bits_on_eight_devices(tmp_path):
    plans = [Arrangement("one", Mesh(), 16), Arrangement("eight", Mesh(shape=(8,)), 16, seed=1)]
    (_, other) = outcomes_of(translator(tmp_path, precision="bfloat16"), plans, sentences(100, 8))
    assert other.text == "eight: same translations and scores, bit for bit"
