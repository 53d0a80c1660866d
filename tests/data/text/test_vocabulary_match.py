"""Which rows of an embedding a model with another vocabulary takes over."""

import pytest

from gshard_nmt.data.text.vocabulary import SPECIALS, Vocabulary, VocabularySpec, train_vocabulary
from gshard_nmt.data.text.vocabulary_match import RowMatch, identity, match_rows

OLD_TEXT = ["the red apple runs fast", "the green tree sleeps", "seven apples run to the house"] * 3
NEW_TEXT = [*OLD_TEXT, *["der rote Apfel läuft", "die grünen Bäume schlafen und 行"] * 3]


@pytest.fixture(scope="module")
def old(tmp_path_factory) -> Vocabulary:
    spec = VocabularySpec(300, tags=("<spare1>", "<2fr>", "<2de>", "<fr>"))
    return train_vocabulary(OLD_TEXT, spec, tmp_path_factory.mktemp("old") / "source.model")


@pytest.fixture(scope="module")
def new(tmp_path_factory) -> Vocabulary:
    spec = VocabularySpec(330, tags=("<2de>", "<2fr>", "<2nn>", "<nn>", "<subset:x>", "<spare1>"))
    return train_vocabulary(NEW_TEXT, spec, tmp_path_factory.mktemp("new") / "source.model")


def sources_of(match: RowMatch, old: Vocabulary, new: Vocabulary) -> dict[str, list[str]]:
    return {
        piece: old.pieces(ids)
        for piece, ids in zip(new.pieces(range(new.size)), match.sources, strict=True)
    }


def test_a_piece_that_both_have_keeps_its_row_whatever_its_id_is(old, new):
    match = match_rows(old, new)
    sources = sources_of(match, old, new)
    for piece in ("<pad>", "</s>", "<2fr>", "<2de>", "<spare1>", "<0x41>", "e"):
        assert sources[piece] == [piece]
    assert old.tag("<2de>") != new.tag("<2de>")
    assert match.sources[new.tag("<2de>")] == (old.tag("<2de>"),)
    common = set(old.keys()) & set(new.keys())
    assert sum(match.is_known) == len(common) > SPECIALS + 256
    assert f"; {old.size - len(common)} old rows left out" in match.text
    assert not match.is_identity


def test_a_new_piece_is_the_mean_of_the_old_pieces_that_spell_it(old, new):
    sources = sources_of(match_rows(old, new), old, new)
    assert sources["行"] == ["<0xE8>", "<0xA1>", "<0x8C>"]
    # No space is added before a piece inside a word, and none is lost at its beginning.
    assert sources["er"] == ["e", "r"]
    assert sources["▁d"] == ["▁", "d"]


def test_a_new_tag_is_the_mean_of_the_tags_of_its_kind(old, new):
    match = match_rows(old, new)
    sources = sources_of(match, old, new)
    assert sources["<2nn>"] == ["<2fr>", "<2de>"]
    assert sources["<nn>"] == ["<fr>"]
    assert sources["<subset:x>"] == []
    assert f"{match.means} means of old rows, 1 new;" in match.text


def test_equal_vocabularies_match_row_by_row(old):
    assert match_rows(old, old).is_identity
    assert match_rows(old, old).sources == identity(old.size).sources
