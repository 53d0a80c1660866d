"""The vocabularies of prepared data: reserved symbols, joint, existing files, spare tags."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.manifest import checksum
from gshard_nmt.data.text.vocabulary import (
    BYTES,
    DOCUMENT_BREAK,
    PLACEHOLDER,
    SPECIALS,
    Vocabulary,
    VocabularySpec,
    existing_models,
    make_vocabularies,
    source_tag,
    tags_of,
    train_vocabulary,
)
from gshard_nmt.errors import UserError

CONFIG = Data(source_vocabulary=330, target_vocabulary=320, subset_tags=("back",), spare_tags=2)
JOINT = dataclasses.replace(CONFIG, vocabulary="joint", target_vocabulary=330)
DIRECTIONS = [("fr", "en"), ("en", "fr")]
RESERVED = ["<doc>", "<ph>", "<spare1>", "<spare2>", "<2en>", "<2fr>", "<subset:back>"]


def lines(words: str) -> list[str]:
    rng = np.random.default_rng(0)
    return [
        f"{' '.join(rng.choice(words.split(), rng.integers(1, 6)))} <doc> <2fr>" for _ in range(99)
    ]


TEXTS = {
    "source": {"fr-en": lines("rouge arbre maison"), "en-fr": lines("red tree house")},
    "target": {"fr-en": lines("red tree house"), "en-fr": lines("rouge arbre maison")},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    make_vocabularies(CONFIG, DIRECTIONS, TEXTS, folder)
    return folder


@pytest.fixture(scope="module")
def both(folder):
    return [Vocabulary.load(folder / f"{side}.model") for side in ("source", "target")]


def names(vocabulary: Vocabulary, count: int) -> list[str]:
    return vocabulary._processor.id_to_piece(list(range(SPECIALS, SPECIALS + count)))


def test_reserved_symbols_have_the_first_free_ids_in_the_documented_order(both):
    source, target = both
    assert names(source, len(RESERVED)) == RESERVED
    assert [source.tag(symbol) for symbol in RESERVED] == list(range(4, 11))
    assert (source.byte_values >= 0).argmax() == 11
    assert sorted(source.byte_values)[-BYTES:] == list(range(BYTES))
    assert names(target, 2) == [DOCUMENT_BREAK, PLACEHOLDER]
    assert target.tag("<spare1>") is None
    assert (source.size, target.size) == (330, 320)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from([*RESERVED, " ", "red", "<", ">", "2fr"]), max_size=6))
def test_no_text_is_encoded_to_a_reserved_symbol(both, parts):
    for vocabulary in both:
        (ids,) = vocabulary.encode(["".join(parts)])
        assert not {*ids} & {vocabulary.tag(symbol) for symbol in RESERVED}
        # The characters are there.
        assert vocabulary.decode([ids]) == [" ".join("".join(parts).split())]


def test_the_tag_of_a_subset_comes_after_the_languages(folder):
    source = Vocabulary.load(folder / "source.model")
    assert source.tags("fr", "en") == source.tags("fr", "en", "other") == [8]
    assert source.tags("fr", "en", "back") == [8, 10]
    assert source.encode_source([""], "fr", "en", "back") == [[8, 10, 1]]


def test_the_tags_are_those_that_the_directions_need():
    assert tags_of(Data(), [("fr", "en"), ("de", "en")]) == ()
    assert tags_of(Data(language_tags=True), [("fr", "en"), ("de", "en")]) == ("<de>", "<fr>")
    assert tags_of(CONFIG, DIRECTIONS) == ("<2en>", "<2fr>", "<subset:back>")
    # "doc" is a language too.
    assert source_tag("doc") == "<language:doc>"


def test_a_joint_vocabulary_is_one_file_with_the_text_of_both_sides(tmp_path):
    directions = [("fr", "en")]
    texts = {
        "source": {"fr-en": lines("rouge arbre")},
        "target": {"fr-en": lines("red Ⅳ")},
    }
    source, target = make_vocabularies(JOINT, directions, texts, tmp_path)
    assert source.size == target.size
    assert (tmp_path / "source.model").read_bytes() == (tmp_path / "target.model").read_bytes()
    assert source.tag("<spare2>") is not None
    (ids,) = source.encode(["rouge red"])
    assert not source.is_byte_fallback[ids].any()
    # The decoder writes the text of the references, so no character is replaced.
    assert source.decode(source.encode(["red Ⅳ"])) == ["red Ⅳ"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"target_vocabulary": 320},
            "Data.source_vocabulary is 330 and Data.target_vocabulary is 320, but Data.vocabulary = "
            "'joint' makes one vocabulary for both. Give both the same number.",
        ),
        (
            {"target_model": "b.model"},
            "Data.target_model is 'b.model' and Data.source_model is '', but Data.vocabulary = 'joint' "
            "uses one file for both. Set only Data.source_model, or set Data.vocabulary = 'two'.",
        ),
    ],
)
def test_a_joint_vocabulary_has_one_size_and_one_file(changes, message):
    with pytest.raises(UserError) as error:
        dataclasses.replace(JOINT, **changes)
    assert str(error.value) == message


def test_an_existing_model_is_copied_byte_by_byte(folder, tmp_path):
    model = str(folder / "source.model")
    config = dataclasses.replace(CONFIG, source_model=model, source_vocabulary=5000)
    source, target = make_vocabularies(config, DIRECTIONS, TEXTS, tmp_path)
    assert (tmp_path / "source.model").read_bytes() == (folder / "source.model").read_bytes()
    assert (tmp_path / "target.model").read_bytes() == (folder / "target.model").read_bytes()
    assert (source.size, target.size) == (330, 320)
    assert existing_models(config) == {"source": checksum(folder / "source.model")}
    joint = dataclasses.replace(JOINT, source_model=model)
    make_vocabularies(joint, DIRECTIONS, {}, tmp_path)
    assert (tmp_path / "target.model").read_bytes() == (folder / "source.model").read_bytes()
    assert existing_models(joint) == dict.fromkeys(
        ("source", "target"), checksum(folder / "source.model")
    )
    assert existing_models(CONFIG) == {}


def test_a_later_language_gets_a_spare_tag_and_no_id_changes(folder, tmp_path):
    config = dataclasses.replace(CONFIG, source_model=str(folder / "source.model"))
    directions = [*DIRECTIONS, ("en", "de")]
    before = Vocabulary.load(folder / "source.model")
    source, _ = make_vocabularies(config, directions, TEXTS, tmp_path)
    assert names(source, 7) == [*RESERVED[:2], "<2de>", *RESERVED[3:]]
    assert source.tags("en", "de") == [6]
    assert source.encode(TEXTS["source"]["fr-en"]) == before.encode(TEXTS["source"]["fr-en"])
    assert Vocabulary.load(tmp_path / "source.model").tags("en", "de") == [6]
    # What was encoded before is still right; text for the new language is not.
    assert source.encoding_key("en", "fr") == before.encoding_key("en", "fr")
    assert source.encoding_key("en", "de") != before.encoding_key("en", "de")
    target = Vocabulary.load(folder / "target.model")
    assert source.encoding_key("en", "fr") != target.encoding_key("en", "fr")


def test_too_few_spare_tags_are_an_error(folder, tmp_path):
    model = str(folder / "source.model")
    config = dataclasses.replace(CONFIG, source_model=model)
    directions = [*DIRECTIONS, ("en", "de"), ("en", "it"), ("en", "es")]
    with pytest.raises(UserError) as error:
        make_vocabularies(config, directions, TEXTS, tmp_path)
    assert str(error.value) == (
        f"Data.source_model = {model!r} lacks the tags <2de>, <2es>, <2it> and has 2 spare tags. Use a "
        "vocabulary that was trained with --control_symbols=<2de>,<2es>,<2it>, or leave out languages."
    )


def test_a_missing_or_foreign_model_is_an_error_that_says_how_to_make_one(tmp_path):
    config = dataclasses.replace(CONFIG, target_model=str(tmp_path / "none.model"))
    with pytest.raises(UserError, match=r"Data\.target_model names .*none\.model, but there is no"):
        existing_models(config)
    (tmp_path / "text.model").write_text("text")
    config = dataclasses.replace(CONFIG, target_model=str(tmp_path / "text.model"))
    with pytest.raises(UserError, match="is not a SentencePiece model"):
        existing_models(config)


def test_the_algorithm_and_the_pieces_are_read_from_the_file(tmp_path):
    for algorithm in ("bpe", "unigram"):
        spec = VocabularySpec(300, algorithm, tags=("<2fr>",))
        vocabulary = train_vocabulary(lines("red tree"), spec, tmp_path / "x.model")
        assert vocabulary.algorithm == algorithm
        assert len(vocabulary.subwords) == vocabulary.size - SPECIALS - BYTES - 1
        processor = vocabulary._processor
        assert all(
            processor.id_to_piece(i) == text and processor.get_score(i) == pytest.approx(score)
            for text, (i, score) in vocabulary.subwords.items()
        )
