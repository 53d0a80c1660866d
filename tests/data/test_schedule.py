"""The schedule of a mixture: rates by hand, phases, and a message for each mistake."""

import dataclasses
import re

import numpy as np
import pytest

from gshard_nmt.data.config import Data
from gshard_nmt.data.schedule import Component, of_part, phase_at, phases_of, wrong_names
from gshard_nmt.errors import UserError

FR = Component("fr", "en", "fr", "", 800)
FR_BACK = Component("fr", "en", "fr", "back", 200)
DE = Component("de", "en", "de", "", 1000)
EVERY = (FR, FR_BACK, DE)


def rates(schedule, phase=-1, components=EVERY, temperature=1.0):
    return phases_of(schedule, temperature)[phase].rates(components).tolist()


def test_rates_by_hand():
    np.testing.assert_allclose(rates([{"from_step": 0}]), [0.4, 0.1, 0.5])
    # Without its back-translations, French is 800 of 1800 pairs.
    no_back = {"from_step": 0, "weights": {"back": 0.0}}
    np.testing.assert_allclose(rates([no_back]), [4 / 9, 0, 5 / 9])
    # Four times the back-translations are 800 of 1600 French pairs, and of 2600 pairs in all.
    much = {"from_step": 0, "weights": {"back": 4}}
    np.testing.assert_allclose(rates([much]), [8 / 26, 8 / 26, 10 / 26])
    # At a temperature, only the part of French grows with its weight.
    warm = {"from_step": 0, "temperature": 2.0, "weights": {"fr": 3.0}}
    np.testing.assert_allclose(rates([warm]), [0.6, 0.15, 0.25])
    by_direction = {"from_step": 0, "weights": {"fr-en": 3.0}}
    np.testing.assert_allclose(rates([by_direction]), [0.6, 0.15, 0.25])
    # The name of a pair without English is that of a direction too, and counts once.
    pair = [Component("fr", "de", "fr-de", "", 5), Component("de", "fr", "fr-de", "", 5), DE]
    weights = {"from_step": 0, "weights": {"fr-de": 2}}
    assert rates([weights], components=pair) == pytest.approx([10 / 1020, 10 / 1020, 1000 / 1020])


def test_phases_begin_at_their_steps():
    schedule = [{"from_step": 0, "temperature": 1.0}, {"from_step": 10, "temperature": 5.0}]
    phases = phases_of(schedule, 9.0)
    assert [phase.temperature for phase in phases] == [1.0, 5.0]
    assert [phase_at(phases, step) for step in (0, 9, 10, 99)] == [0, 0, 1, 1]
    shares = Data(schedule=({"from_step": 0.5}, {"from_step": 0.9}))
    assert [phase.from_step for phase in shares.in_run(30).phases] == [0, 15, 27]
    tiny = Data(schedule=({"from_step": 0.001},)).in_run(6)
    assert [phase.from_step for phase in tiny.phases] == [0, 1]
    with pytest.raises(
        UserError, match="entry 2 begins at step 1, and the entry before it at step 1"
    ):
        shares.in_run(1)
    later = phases_of(schedule[1:], 9.0)
    assert [(phase.from_step, phase.temperature) for phase in later] == [(0, 9.0), (10, 5.0)]


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ([{"temperature": 1.0}], "in entry 1, from_step is None; it must be a whole number"),
        ([{"from_step": 1.5}], "in entry 1, from_step is 1.5"),
        ([{"from_step": 0, "temprature": 1}], "the key 'temprature'; did you mean 'temperature'?"),
        ([{"from_step": 0, "temperature": 0}], "in entry 1 (from_step 0), temperature is 0; it must"),
        ([{"from_step": 0, "weights": 3}], "in entry 1 (from_step 0), weights is 3; it must be a"),
        ([{"from_step": 0, "weights": {"fr": -1}}], "the weight of 'fr' is -1; it must be from 0 to"),
        ([{"from_step": 0, "weights": {"fr": 1e308}}], "the weight of 'fr' is 1e+308; it must be from 0"),
        ([{"from_step": 9}, {"from_step": 9}], "entry 2 begins at step 9, and the entry before it"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_schedule_is_an_error_of_the_config(schedule, words):
    with pytest.raises(UserError, match=re.escape(words)) as error:
        Data(schedule=tuple(schedule))
    assert str(error.value).startswith("Data.schedule is wrong: ")
    assert error.value.settings == ("Data.schedule",)


def test_every_unknown_name_is_an_error():
    phases = phases_of([{"from_step": 0, "weights": {"fr": 2, "bakc": 0, "zz": 1}}], 1.0)
    errors = [str(error) for error in wrong_names(phases, EVERY)]
    assert errors[0].startswith(
        "Data.schedule is wrong: a weight names 'bakc', which the data does not have; did you mean "
        "'back'?"
    )
    assert len(errors) == 2
    clash = phases_of([{"from_step": 0, "weights": {"fr": 2}}], 1.0)
    (error,) = wrong_names(clash, [FR, dataclasses.replace(FR, subset="fr")])
    assert "a weight names 'fr', a language and a corpus" in str(error)


def test_nothing_left_to_train_on_is_an_error():
    with pytest.raises(UserError, match="leaves nothing to train on from step 5"):
        rates([{"from_step": 5, "weights": {"fr": 0, "de": 0}}])


def test_a_part_of_the_data_keeps_the_weights_that_matter_to_it():
    first = {"from_step": 0, "weights": {"fr": 0, "de-en": 3, "back": 0}, "temperature": 1.0}
    second = {"from_step": 9, "weights": {"back": 2}}
    third = {"from_step": 20, "temperature": 5.0}
    french = ({**first, "weights": {"back": 0}}, second, third)
    assert of_part([first, second, third], [FR, FR_BACK]) == french
    assert not list(wrong_names(phases_of(french, 1.0), [FR, FR_BACK]))
    # What all components share changes no rate.
    german = ({**first, "weights": {}}, {**second, "weights": {}}, third)
    assert of_part([first, second, third], [DE]) == german
    assert of_part([first], [FR_BACK]) == ({**first, "weights": {}},)
