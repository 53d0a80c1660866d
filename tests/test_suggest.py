from gshard_nmt.suggest import did_you_mean


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
