"""The plan of a run agrees with what its batches deliver, and is written in each format."""

import collections
import dataclasses
import json
import re

import numpy as np
import pytest

from gshard_nmt import plan_mixture
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.config import Data
from gshard_nmt.errors import UserError
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


def test_a_schedule_has_its_phases():
    schedule = (
        {"from_step": 100, "temperature": 1.0, "weights": {"back": 0.0, "fr": 2.0}},
        {"from_step": 200, "temperature": 1.0},
    )
    config = dataclasses.replace(CONFIG, schedule=schedule)
    sizes = {"fr": 1000, "fr.back": 3000, "de": 500}
    plan = plan_mixture.plan_sizes(config, 300, sizes, 20.0)
    assert [(phase.first, phase.last) for phase in plan.phases] == [
        (1, 100),
        (101, 200),
        (201, 300),
    ]
    assert plan.phases[1].about == "temperature 1, weights back 0, fr 2"
    assert [use.name for use in plan.uses] == ["fr-en.back", "fr-en", "de-en"]
    drawn = np.diff(plan.draws, axis=0, prepend=0)
    back = drawn[:, 0] / drawn.sum(1)
    during = (plan.points > 100) & (plan.points <= 200)
    assert (back[during] == 0).all()
    assert (back[~during] > 0.4).all()
    short = plan_mixture.plan_sizes(config, 50, sizes, 20.0)
    assert [(phase.first, phase.last) for phase in short.phases] == [(1, 50)]
    both = dataclasses.replace(CONFIG, direction="many-to-many")
    plan = plan_mixture.plan_sizes(both, 50, {"fr": 9}, 20.0)
    assert [use.name for use in plan.uses] == ["fr-en", "en-fr"]


@pytest.mark.parametrize(
    ("direction", "names"),
    [
        ("all", ["fr-en", "en-fr", "fr-de", "de-fr", "pt-BR-en", "en-pt-BR"]),
        ("as-named", ["fr-en", "fr-de", "en-pt-BR"]),
    ],
)
def test_a_plan_by_sizes_of_pairs(direction, names):
    config = dataclasses.replace(CONFIG, direction=direction)
    plan = plan_mixture.plan_sizes(config, 50, {"fr": 9, "fr-de": 8, "en-pt-BR": 7}, 20.0)
    assert sorted(use.name for use in plan.uses) == sorted(names)


def test_a_size_of_a_pair_without_english_needs_a_direction_that_uses_it():
    message = (
        "--sizes has fr-de, a pair without English, but Data.direction is 'xx-en'. Leave the pair out, "
        "or set Data.direction = 'all'."
    )
    with pytest.raises(UserError, match=f"^{re.escape(message)}$"):
        plan_mixture.plan_sizes(CONFIG, 50, {"fr": 9, "fr-de": 8}, 20.0)


def test_the_sizes_are_read():
    assert plan_mixture.read_sizes("fr=1000000, de =2e4") == {"fr": 1_000_000, "de": 20_000}
    with pytest.raises(UserError, match="--sizes has 'fr =11'; it must name each language once"):
        plan_mixture.read_sizes("fr=10,fr =11")
    for text in ("fr", "fr=0", "=3", "fr=x", "fr=1,fr=2", ",", "fr=inf"):
        with pytest.raises(UserError, match=r"Write, for example, --sizes fr=1000000,de=20000\."):
            plan_mixture.read_sizes(text)


def test_a_hundred_languages_of_the_size_of_the_paper_are_planned(tmp_path, capsys):
    sizes = {f"l{n}": int(2e9 / (1 + n) ** 2) for n in range(100)}
    config = Data(rows=32_768, source_length=128, target_length=128)
    plan = plan_mixture.plan_sizes(config, 300_000, sizes, 60.0)
    plan_mixture.show(plan, tmp_path / "plan.json")
    out = capsys.readouterr().out
    assert "steps 1 to 300,000: temperature 5" in out
    assert "the model may learn them by heart" in out
    written = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert len(written["pairs"]) == 100
    assert sum(pair["draws"] for pair in written["pairs"]) == sum(written["draws"][-1])
