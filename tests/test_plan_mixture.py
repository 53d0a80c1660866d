"""The plan of a run agrees with what its batches deliver, and warns of extremes."""

import collections
import dataclasses
import json

import numpy as np
import pytest

from gshard_nmt import plan_mixture
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.batching.mixture import Mixture
from gshard_nmt.data.config import Data
from tests.data.synthetic import write_prepared_data

CONFIG = Data(source_length=24, target_length=20, rows=4, packing_window=3, temperature=2.0)
SIZES = {"fr": 400, "de": 100, "nl": 25}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_prepared_data(tmp_path_factory.mktemp("data") / "prepared", CONFIG, SIZES)


def test_the_plan_is_what_training_sees(data):
    steps = 300
    plan = plan_mixture.plan_data(CONFIG, steps, data.folder)
    batches = TrainBatches(data, CONFIG)
    seen: collections.Counter[str] = collections.Counter()
    languages = data.languages(CONFIG)
    for _ in range(steps):
        arrays = next(batches)
        begins = (arrays["source_positions"] == 0) & (arrays["source_segments"] > 0)
        numbers, counts = np.unique(arrays["source_languages"][begins], return_counts=True)
        seen.update(
            {languages[n - 1]: c for n, c in zip(numbers.tolist(), counts.tolist(), strict=True)}
        )
    batches.close()
    planned = {use.name.removesuffix("-en"): use.draws for use in plan.uses}
    assert sum(planned.values()) == pytest.approx(seen.total(), rel=0.02)
    assert planned == pytest.approx(dict(seen), rel=0.03)


def test_a_schedule_has_its_phases(data, tmp_path, capsys):
    schedule = (
        {"from_step": 1 / 3, "temperature": 1.0, "weights": {"nl": 0.0, "fr": 2.0}},
        {"from_step": 2 / 3, "temperature": 1.0},
    )
    config = dataclasses.replace(CONFIG, schedule=schedule)
    plan = plan_mixture.plan_data(config, 300, data.folder)
    assert [(phase.first, phase.last) for phase in plan.phases] == [
        (1, 100),
        (101, 200),
        (201, 300),
    ]
    assert plan.phases[1].about == "temperature 1, weights nl 0, fr 2"
    assert [use.name for use in plan.uses] == ["fr-en", "de-en", "nl-en"]
    short = plan_mixture.plan_data(config, 50, data.folder)
    assert [(phase.first, phase.last) for phase in short.phases] == [(1, 17), (18, 33), (34, 50)]
    plan_mixture.show(plan, tmp_path / "plan.json")
    assert "steps 101 to 200: temperature 1, weights nl 0, fr 2" in capsys.readouterr().out
    written = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert [pair["draws"] for pair in written["pairs"]] == [use.draws for use in plan.uses]


@pytest.mark.parametrize("draws", [0, 1, 63, 64, 65, 1000])
def test_the_counts_are_those_of_the_draws(draws):
    mixture = Mixture(((0.7, 0.2, 0.1), (0.0, 0.5, 0.5)), 4, 3)
    for phase in (0, 1):
        drawn = [
            mixture.components(stream, phase, np.arange(len(range(stream, draws, 4))))
            for stream in range(4)
        ]
        expected = np.bincount(np.concatenate(drawn), minlength=3)
        np.testing.assert_array_equal(plan_mixture.counts_until(mixture, phase, draws), expected)


def warnings(sizes, draws):
    names = [f"l{n}" for n in range(len(sizes))]
    uses = plan_mixture.uses_of(names, sizes, draws, [10.0] * len(sizes))
    return list(plan_mixture.Plan(100, 10.0, [], uses).warnings())


def test_warnings_name_extremes():
    (often,) = warnings([1_000_000, 10], [1_000_000, 9400])
    assert often.startswith("l1 (940 times): each example is seen more than 100 times")
    (rarely,) = warnings([10**9, 10**9], [500, 500])
    assert rarely.startswith("l0, the largest: only 0.0% of its examples are seen.")
    assert warnings([10_000, 5000], [66_000, 34_000]) == []
    never = warnings([10, 10**9], [50, 0])
    assert never == ["l1: never seen in these steps. Raise its weight, or train longer."]
