"""Ids as text: spaces, tags, bytes and unknown pieces."""

import numpy as np
import pytest

from gshard_nmt.data.batching.batch_text import Span, read_rows
from gshard_nmt.data.batching.packing import to_arrays
from gshard_nmt.data.sets.examples import Example
from gshard_nmt.data.sets.manifest import PreparedPair
from gshard_nmt.data.text.vocabulary import EOS, UNK, VocabularySpec, train_vocabulary


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "v.model"
    spec = VocabularySpec(400, tags=("<2en>", "<2fr>", "<subset:web>"), coverage=1.0)
    return train_vocabulary(["a red house", "two red trees", "the house of trees"] * 20, spec, path)


def segment(vocabulary, ids, pairs=(), pieces=False):
    example = Example(np.array(ids), np.array([*vocabulary.encode(["red"])[0], EOS]), 1)
    arrays = to_arrays([[example]], 40, 20)
    (row,) = read_rows(arrays, [7], pairs, ["fr", "de"], (vocabulary, vocabulary), pieces)
    assert row.number == 7
    assert row.lengths == (40, 20)
    return row.segments[0]


def test_bytes_are_joined_to_characters_and_marked(vocabulary):
    ids = vocabulary.encode(["red 東 house"])[0]
    sentence = segment(vocabulary, [*ids, UNK, EOS]).source
    assert sentence.plain.startswith("red 東 house")
    assert Span("東", "bytes") in sentence.spans
    assert sentence.spans[-1].kind == "unknown"
    assert (sentence.tokens, sentence.fallback) == (len(ids) + 2, 4)


def test_pieces_are_shown_one_by_one(vocabulary):
    ids = [vocabulary.tag("<2en>"), *vocabulary.encode(["red house"])[0], EOS]
    sentence = segment(vocabulary, ids, pieces=True).source
    assert sentence.plain == " ".join(vocabulary.pieces(ids))
    assert sentence.spans[0] == Span("<2en>", "tag")


def test_the_tag_of_a_subset_tells_the_subset(vocabulary):
    pairs = [PreparedPair("de", "en", "de", {}), PreparedPair("de", "en", "de", {}, subset="web")]
    tags = [vocabulary.tag("<2en>"), vocabulary.tag("<subset:web>")]
    text = vocabulary.encode(["red"])[0]
    assert segment(vocabulary, [tags[0], *text, EOS], pairs).pairs == ("de-en",)
    assert segment(vocabulary, [*tags, *text, EOS], pairs).pairs == ("de-en.web",)
