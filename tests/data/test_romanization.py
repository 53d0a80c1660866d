"""Romanization: related languages share pieces, and nothing that must stay is lost."""

import unicodedata

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.config import Data
from gshard_nmt.data.romanization import romanized, rules
from gshard_nmt.data.vocabulary import Vocabulary, VocabularySpec, train_vocabulary
from gshard_nmt.data.vocabulary_pair import specs_of
from gshard_nmt.errors import UserError

CYRILLIC, LATIN = "Српски језик и остало", "Srpski jezik i ostalo"
KEPT = "中文 かな カタカナ 한국어"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("romanization") / "source.model"
    train_vocabulary([CYRILLIC, LATIN, KEPT] * 20, VocabularySpec(400, normalization="latin"), path)
    return path


@pytest.fixture(scope="module")
def vocabulary(file):
    return Vocabulary.load(file)


@pytest.fixture(scope="module")
def normalize(file):
    """What a model file makes of a text before it splits it."""
    return sentencepiece.SentencePieceProcessor(model_file=str(file)).normalize


@pytest.mark.parametrize(
    ("text", "latin"),
    [
        ("Жук", "Zhuk"),
        ("naïve Größe", "naive Grosse"),
        ("नेपाली फाइल १२", "nepali phail 12"),
        ("Ελληνικά", "Ellinika"),
        ("“50 €…”", "“50 €...”"),
        # Alef has no equivalent of its own.
        ("فایل", "fاyl"),
        ("Ａ\u200bＢ\x07", "A B"),
    ],
)
def test_letters_and_digits_become_latin_and_signs_stay(text, latin):
    assert romanized(text) == latin


def test_both_scripts_of_a_language_have_the_same_ids(vocabulary):
    assert vocabulary.encode([CYRILLIC]) == vocabulary.encode([LATIN])


def test_two_languages_of_other_scripts_share_pieces(vocabulary):
    assert not any(unicodedata.name(c).startswith("CYRILLIC") for c in "".join(vocabulary.subwords))


@settings(deadline=None)
@given(st.text("中文字漢カキかきがガ한국어각\u3099 abc%s…１", max_size=20))
def test_chinese_japanese_and_korean_are_as_without_romanization(normalize, text):
    plain = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    expected = plain.normalize(text)
    assert normalize(text) == expected
    # Letters whose marks stand apart are put together.
    assert normalize(unicodedata.normalize("NFD", text)) == expected


@settings(deadline=None)
@given(st.text())
def test_a_romanized_text_is_not_romanized_further(text):
    assert romanized(romanized(text)) == romanized(text)


@settings(deadline=None)
@given(st.text(st.characters(categories=["Lu", "Ll", "Lo"]), min_size=1, max_size=1))
def test_no_letter_is_lost(letter):
    plain = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", remove_extra_whitespaces=False
    )
    assert bool(romanized(letter)) == bool(plain.normalize(letter))


def test_rules_are_one_line_for_each_text():
    texts = [line.split("\t")[0] for line in rules().splitlines()]
    assert len(texts) == len(set(texts)) > 10_000


def test_equal_texts_give_equal_files(file, tmp_path):
    again = tmp_path / "again.model"
    spec = VocabularySpec(400, normalization="latin")
    train_vocabulary([CYRILLIC, LATIN, KEPT] * 20, spec, again)
    assert again.read_bytes() == file.read_bytes()


def test_letters_that_become_one_are_counted_as_one(tmp_path):
    """Room for 20 characters is enough for five alphabets, if they become one."""
    lines = [*["абвгд", "abvgd", "ਅਬਵਗਦ", "અબવગદ", "αβγδ"] * 20, "щ"]
    spec = VocabularySpec(4 + 256 + 40, normalization="latin")
    vocabulary = train_vocabulary(lines, spec, tmp_path / "source.model")
    ids = [i for line in vocabulary.encode(lines) for i in line]
    assert not vocabulary.is_byte_fallback[ids].any()


def test_only_the_source_is_romanized():
    specs = specs_of(Data(romanize_source=True), [("fr", "en")])
    assert specs["source"].normalization == "latin"
    assert specs["target"].normalization == "identity"
    assert specs_of(Data(), [("fr", "en")])["source"].normalization == "nmt_nfkc"


def test_a_joint_vocabulary_cannot_romanize():
    message = "Data.romanize_source = False or Data.vocabulary = 'two'"
    with pytest.raises(UserError, match=message):
        Data(romanize_source=True, vocabulary="joint", target_vocabulary=8000)


def test_a_vocabulary_that_exists_keeps_its_own_rules():
    """So data for one more language is prepared with the settings of the run."""
    assert "source" not in specs_of(
        Data(romanize_source=True, source_model=__file__), [("fr", "en")]
    )
