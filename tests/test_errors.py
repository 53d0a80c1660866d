"""The two exceptions that end a program on purpose."""

import pytest

from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.ranges import at_least, check
from gshard_nmt.settings.config import Train


def test_a_user_error_says_its_message_and_names_its_settings():
    error = UserError("Mesh.axes is wrong; mend it.", ["Mesh.axes", "Mesh.shape"])
    assert str(error) == "Mesh.axes is wrong; mend it."
    assert error.settings == ("Mesh.axes", "Mesh.shape")
    assert UserError("a file is missing; make it.").settings == ()


def test_a_value_out_of_range_names_its_setting():
    with pytest.raises(UserError) as error:
        check(Train(), [at_least(10**6, "log_every")])
    assert error.value.settings == ("Train.log_every",)


def test_no_suggestion_if_no_word_is_near():
    assert did_you_mean("zebra", ["layers"]) == "."
    assert did_you_mean("", ["layers"]) == "."


def test_the_nearest_word_is_suggested_in_its_own_case():
    assert did_you_mean("LAYERS", ["layers"]) == "; did you mean 'layers'?"
    assert did_you_mean("bem", ["beam"], prefix="--") == "; did you mean '--beam'?"
    assert did_you_mean("layer", ["depth", "layers", "players"]) == "; did you mean 'layers'?"


def test_a_word_that_begins_with_what_was_written_is_near():
    assert did_you_mean("pt", ["fr", "pt-BR"]) == "; did you mean 'pt-BR'?"
    assert did_you_mean("fr-CA", ["de", "fr"]) == "; did you mean 'fr'?"
