"""Scores, prefixes and samples of a real decoder: the same from every program and every mesh."""

import functools

import numpy as np

from gshard_nmt.decoding.translator import Translator
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import weight_specs
from gshard_nmt.settings.gin_reader import load_config
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.mesh import Mesh
from tests.model.examples import LAYERS, WIDTHS

EOS, VOCABULARY = 1, 60
CONFIG = load_config("demo").replace(
    model={**LAYERS, **WIDTHS, "experts": 4, "expert_hidden_dim": 16},
    decode={"rows": 4, "source_lengths": (6,), "length_margin": 0, "beam": 3},
)
SOURCES = [[*range(4 + n, 7 + n % 3 + n), EOS] for n in range(7)]


@functools.cache
def translator(nbest: int, devices: int, method: str = "beam") -> Translator:
    """Returns a translator with random weights, the same for all."""
    mesh = Mesh(("x",), (devices,), rules=CONFIG.mesh.rules)
    config = CONFIG.replace(mesh=mesh, decode={"method": method})
    functions = StepFunctions(config.model, config.optimizer, VOCABULARY, VOCABULARY)
    started, specs = runtime.start(mesh), weight_specs(functions)
    rng = np.random.default_rng(0)
    weights = {name: 0.5 * rng.normal(size=spec.shape) for name, spec in sorted(specs.items())}
    weights |= {name: np.ones_like(values) for name, values in weights.items() if "norm" in name}
    weights["target_embedding"] *= 4  # far from uniform
    weights["target_embedding"][EOS] = 0  # otherwise every translation is short
    weights = {name: values.astype("f") for name, values in weights.items()}
    return Translator(config, functions, started, started.put(weights, specs), nbest)


def test_a_translation_that_the_search_found_gets_its_score_again_from_the_same_program():
    search = translator(3, 1)
    translations = search.translate_ids(SOURCES)
    assert max(len(ids) for nbest in translations for ids, _ in nbest) > 5
    for n in range(3):
        scores = search.score_ids(SOURCES, [nbest[n][0] for nbest in translations])
        # A hypothesis may sit in another beam now, so a sum over slots may have another order.
        np.testing.assert_allclose(scores, [nbest[n][1] for nbest in translations], rtol=2e-6)
    assert len(search._programs) == 1


def test_translations_begin_with_their_prefix():
    search = translator(3, 1)
    free = search.translate_ids(SOURCES)
    prefixes = [[50 - n, 7] if n % 2 else [] for n in range(len(SOURCES))]
    for n, nbest in enumerate(search.translate_ids(SOURCES, prefixes)):
        assert len(nbest) == 3
        if n % 2:
            assert all(ids[:2] == prefixes[n] for ids, _ in nbest)
        else:
            assert nbest == free[n]


def test_samples_are_the_same_on_two_devices_and_in_any_batch():
    one, two = translator(2, 1, "sample"), translator(2, 2, "sample")
    samples = one.translate_ids(SOURCES)
    assert len({tuple(ids) for row in samples for ids, _ in row}) > len(SOURCES)
    assert one.translate_ids(SOURCES[::-1])[::-1] == samples
    for row, again in zip(samples, two.translate_ids(SOURCES), strict=True):
        assert [ids for ids, _ in again] == [ids for ids, _ in row]
        np.testing.assert_allclose([s for _, s in again], [s for _, s in row], rtol=1e-5)
