"""Vocabularies: no text is lost, ids and tags are where they belong, and errors say what to do."""

import dataclasses

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.vocabularies import load_models, specs_of, tagged_models
from gshard_nmt.data.text.vocabulary import (
    BOS,
    BYTES,
    DOCUMENT_BREAK,
    EOS,
    PLACEHOLDER,
    SPECIALS,
    UNK,
    Vocabulary,
    VocabularySpec,
    limit_characters,
    source_tag,
    target_tag,
    train_vocabulary,
)
from gshard_nmt.errors import UserError

WORDS = ["red", "green", "blue", "seven", "apple", "tree", "house", "runs", "sleeps", "fast"]
TAGS = (target_tag("fr"), target_tag("de"), source_tag("en"))


def texts() -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 6))) for _ in range(150)]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "source.model"
    train_vocabulary(texts(), VocabularySpec(size=400, tags=TAGS, normalization="identity"), path)
    return path


@pytest.fixture(scope="module")
def vocabulary(file):
    return Vocabulary.load(file)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([*WORDS, "naïve", "東京", "Ελληνικά", "🙂"]), max_size=8))
def test_any_text_is_the_same_after_encoding_and_decoding(vocabulary, words):
    text = " ".join(words)
    (ids,) = vocabulary.encode([text])
    assert EOS not in ids
    assert vocabulary.decode([ids]) == vocabulary.decode([[*ids, EOS]]) == [text]
    # Everything after the first EOS is ignored.
    assert vocabulary.decode([[*ids, EOS, 7, 8, EOS]]) == [text]


def test_tags_come_first_and_the_target_before_the_source(vocabulary):
    french, english = vocabulary.tag("<2fr>"), vocabulary.tag("<en>")
    (plain,) = vocabulary.encode(["red tree"])
    assert vocabulary.encode_source(["red tree"], "en", "fr") == [[french, english, *plain, EOS]]
    # A tag that the vocabulary does not have is left out.
    assert vocabulary.encode_source(["red tree"], "it", "es") == [[*plain, EOS]]
    assert vocabulary.tag("<2es>") is None
    assert vocabulary.tag("red") is None
    assert vocabulary.encode([]) == vocabulary.decode([]) == []


def test_rare_characters_become_bytes_and_are_counted_as_such(vocabulary):
    fallback = vocabulary.is_byte_fallback
    assert fallback.shape == (vocabulary.size,)
    assert fallback.sum() == BYTES + 1
    assert fallback[UNK]
    assert not fallback[[EOS, BOS]].any()
    (common,), (rare,) = vocabulary.encode(["red tree"]), vocabulary.encode(["東"])
    assert not fallback[common].any()
    assert fallback[rare].sum() == len("東".encode())


@pytest.mark.parametrize("ending", [*"\0\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029", "\r\n"])
def test_a_decoded_text_is_one_line_and_one_column(vocabulary, ending):
    # Byte fallback spells the character, as a model may do.
    pieces = vocabulary.encode(["red", "tree"])
    processor = vocabulary._processor
    spelled = [processor.piece_to_id(f"<0x{byte:02X}>") for byte in ending.encode()]
    ids = [*pieces[0], *spelled, *pieces[1]]
    assert ending in processor.decode(ids)
    (text,) = vocabulary.decode([ids])
    assert text.split() == ["red", "tree"]
    assert len(text.splitlines()) == len(text.split("\t")) == len(text.split("\0")) == 1


def test_equal_texts_give_equal_files(file, tmp_path):
    spec = VocabularySpec(size=400, tags=TAGS, normalization="identity")
    train_vocabulary(texts(), spec, tmp_path / "again.model")
    assert (tmp_path / "again.model").read_bytes() == file.read_bytes()


def test_a_vocabulary_too_small_for_its_special_ids_is_an_error(tmp_path):
    path = tmp_path / "source.model"
    with pytest.raises(UserError) as error:
        train_vocabulary(["red"], VocabularySpec(size=SPECIALS + BYTES + 1), path)
    assert str(error.value) == (
        "a vocabulary of 261 pieces has no room for text after 4 special ids, 256 bytes and 0 "
        "tags; raise Data.source_vocabulary and Data.target_vocabulary."
    )
    with pytest.raises(UserError, match=r"the training text for source\.model is empty; add lines"):
        train_vocabulary([" ", ""], VocabularySpec(size=400), path)
    assert not path.exists()


def test_long_lines_count_and_short_ones_give_the_same_file_as_ever(tmp_path):
    """SentencePiece skips lines of more than 4,192 bytes unless it is told otherwise."""
    spec = VocabularySpec(320)
    documents = [f"{'क ख ग घ ' * 600}ङ{n}" for n in range(3)]
    vocabulary = train_vocabulary(documents, spec, tmp_path / "long.model")
    assert not vocabulary.is_byte_fallback[vocabulary.encode(["क घ"])[0]].any()
    train_vocabulary(["a b c"], spec, tmp_path / "short.model")
    for name, is_told in (("long", True), ("short", False)):
        content = (tmp_path / f"{name}.model").read_bytes()
        trainer = sentencepiece_model_pb2.ModelProto.FromString(content).trainer_spec
        assert trainer.HasField("max_sentence_length") == is_told


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("e\u0301", "é"),
        ("Ⅳ", "IV"),
        *((f"a{mark}b", "a b") for mark in "\u200c\u200b\u200e\u200f\u061c"),
        *((f"a{mark}b", f"a{mark}b") for mark in "\u200d\u00ad"),
        ("a\x07b", "ab"),
    ],
)
def test_what_a_vocabulary_changes_in_text(tmp_path, text, source):
    for normalization, expected in (("nmt_nfkc", source), ("identity", text)):
        spec = VocabularySpec(300, normalization=normalization)
        vocabulary = train_vocabulary(["a b"], spec, tmp_path / "x.model")
        assert vocabulary.decode(vocabulary.encode([text])) == [expected]


def test_a_file_that_is_not_our_vocabulary_is_an_error(tmp_path):
    path = tmp_path / "x.model"
    with pytest.raises(UserError, match=r"no vocabulary .*x\.model; make it with gshard-data"):
        Vocabulary.load(path)
    for content in (b"", b"something else"):
        path.write_bytes(content)
        with pytest.raises(UserError, match="is not a SentencePiece model"):
            Vocabulary.load(path)
    with path.open("wb") as model:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts()), model_writer=model, vocab_size=30, minloglevel=2
        )
    with pytest.raises(UserError, match="special ids other than PAD 0, EOS 1, UNK 2, BOS 3"):
        Vocabulary.load(path)


@pytest.mark.parametrize(
    ("texts", "coverage", "characters", "expected"),
    [
        (["aaaa bb c"], 0.9995, 10, (["aaaa bb c"], 0.9995)),
        (["a" * 99 + " b"], 0.9995, 1, (["a" * 99 + " b"], 0.99)),
        ([], 0.9995, 2, ([], 1.0)),
        (["aab", "abc d"], 5 / 7, 4, (["aab", "ab   "], 1.0)),
        (["aab", "abc d"], 1, 2, (["aab", "ab   "], 1.0)),
        (["aab", "abc d"], 0.5, 4, (["aa ", "a    "], 1.0)),
        (["aaa"], 0.5, 4, (["aaa"], 1.0)),
    ],
)
def test_the_rarest_characters_get_no_pieces(texts, coverage, characters, expected):
    assert limit_characters(texts, coverage, characters) == expected


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


def make_vocabularies(config, directions, texts, folder):
    """Writes the files of both vocabularies, as preparation does, and returns the vocabularies."""
    sides = ("source", "target")
    for side, spec in specs_of(config, directions).items():
        own = [texts[name] for name in (sides if config.vocabulary == "joint" else (side,))]
        lines = dict.fromkeys(line for some in own for part in some.values() for line in part)
        for name in sides[sides.index(side) :]:
            train_vocabulary(list(lines), spec, folder / f"{name}.model")
    return tuple(Vocabulary.load(folder / f"{side}.model") for side in sides)


def tagged(config, directions, folder):
    return tagged_models(config, load_models(folder), folder, directions)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    make_vocabularies(CONFIG, DIRECTIONS, TEXTS, folder)
    return folder


@pytest.fixture(scope="module")
def both(folder):
    return [Vocabulary.load(folder / f"{side}.model") for side in ("source", "target")]


def tag_names(vocabulary: Vocabulary, count: int) -> list[str]:
    return vocabulary._processor.id_to_piece(list(range(SPECIALS, SPECIALS + count)))


def test_reserved_symbols_have_the_first_free_ids_in_the_documented_order(both):
    source, target = both
    assert tag_names(source, len(RESERVED)) == RESERVED
    assert [source.tag(symbol) for symbol in RESERVED] == list(range(4, 11))
    assert (source.byte_values >= 0).argmax() == 11
    assert sorted(source.byte_values)[-BYTES:] == list(range(BYTES))
    assert tag_names(target, 2) == [DOCUMENT_BREAK, PLACEHOLDER]
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


def test_a_joint_vocabulary_is_one_file_with_the_text_of_both_sides(tmp_path):
    texts = {"source": {"fr-en": lines("rouge arbre")}, "target": {"fr-en": lines("red Ⅳ")}}
    source, target = make_vocabularies(JOINT, [("fr", "en")], texts, tmp_path)
    assert source.size == target.size
    assert (tmp_path / "source.model").read_bytes() == (tmp_path / "target.model").read_bytes()
    assert source.tag("<spare2>") is not None
    (ids,) = source.encode(["rouge red"])
    assert not source.is_byte_fallback[ids].any()
    # The decoder writes the text of the references, so no character is replaced.
    assert source.decode(source.encode(["red Ⅳ"])) == ["red Ⅳ"]


def test_an_existing_model_is_copied_byte_by_byte(folder):
    source, target = ((folder / f"{side}.model").read_bytes() for side in ("source", "target"))
    assert tagged(CONFIG, DIRECTIONS, folder) == {"source": source, "target": target}
    with pytest.raises(UserError, match=r"two vocabularies, and Data\.vocabulary is 'joint'\. Set"):
        tagged(JOINT, DIRECTIONS, folder)


def test_a_later_language_gets_a_spare_tag_and_no_id_changes(folder):
    before = Vocabulary.load(folder / "source.model")
    source = Vocabulary(tagged(CONFIG, [*DIRECTIONS, ("en", "de")], folder)["source"])
    assert tag_names(source, 7) == [*RESERVED[:2], "<2de>", *RESERVED[3:]]
    assert source.tags("en", "de") == [6]
    assert source.encode(TEXTS["source"]["fr-en"]) == before.encode(TEXTS["source"]["fr-en"])


def test_too_few_spare_tags_are_an_error(folder):
    with pytest.raises(UserError) as error:
        tagged(CONFIG, [*DIRECTIONS, ("en", "de"), ("en", "it"), ("en", "es")], folder)
    assert str(error.value) == (
        f"--vocabulary_of {folder} lacks the tags <2de>, <2es>, <2it> and has 2 spare tags. Use a "
        "vocabulary that was trained with --control_symbols=<2de>,<2es>,<2it>, or leave out languages."
    )
