"""Romanization: related languages share pieces, and nothing that must stay is lost."""

import io
import sys
import unicodedata

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.text.romanization import romanized
from gshard_nmt.data.text.vocabulary import (
    SPACE,
    TRAINING_THREADS,
    Vocabulary,
    VocabularySpec,
    train_vocabulary,
)

CYRILLIC, LATIN = "Српски језик и остало", "Srpski jezik i ostalo"
KEPT = "中文 かな カタカナ 한국어"
LETTERS = [
    c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Lu", "Ll", "Lo")
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("romanization") / "source.model"
    train_vocabulary([CYRILLIC, LATIN, KEPT] * 20, VocabularySpec(400, normalization="latin"), path)
    return path


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
        ("فایل", "fayl"),
        # An apostrophe would cut the word.
        ("объявить l'eau", "obʔyavitʔ l'eau"),
        ("ड़", "d"),
        ("ല\u200d", "l"),
        ("Ａ\u200bＢ\x07", "A B"),
    ],
)
def test_letters_and_digits_become_latin_and_signs_stay(text, latin):
    assert romanized(text) == latin


def test_both_scripts_of_a_language_have_the_same_ids(file):
    vocabulary = Vocabulary.load(file)
    assert vocabulary.encode([CYRILLIC]) == vocabulary.encode([LATIN])


@settings(deadline=None)
@given(st.text("中文字漢カキかきがガ한국어각\u3099 abc%s…１", max_size=20))
def test_chinese_japanese_and_korean_are_as_without_romanization(normalize, text):
    expected = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc").normalize(text)
    assert normalize(text) == expected
    # Letters whose marks stand apart are put together.
    assert normalize(unicodedata.normalize("NFD", text)) == expected


def test_no_letter_is_lost_and_none_is_romanized_twice():
    plain = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", remove_extra_whitespaces=False
    )
    for letter, text in zip(LETTERS, plain.normalize(LETTERS), strict=True):
        latin = romanized(letter)
        assert bool(latin) == bool(text), letter
        assert romanized(latin) == latin, letter


def test_a_vocabulary_does_what_the_rules_say(normalize):
    texts = [text.replace(SPACE, " ").strip() for text in normalize(LETTERS)]
    assert texts == [romanized(letter).strip() for letter in LETTERS]


def test_without_romanization_the_file_is_that_of_sentencepiece_alone(tmp_path):
    """So vocabularies that earlier versions made are made again with the same bytes."""
    model = io.BytesIO()
    lines = [f"{a}{b} {a}" for a in "abcdefgh" for b in "ijklmn"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        model_type="bpe",
        character_coverage=0.9995,
        byte_fallback=True,
        normalization_rule_name="nmt_nfkc",
        control_symbols=[],
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=3,
        num_threads=TRAINING_THREADS,
        minloglevel=2,
    )
    train_vocabulary(lines, VocabularySpec(300), tmp_path / "a.model")
    assert (tmp_path / "a.model").read_bytes() == model.getvalue()


def test_letters_that_become_one_are_counted_as_one(tmp_path):
    """Room for 20 characters is enough for five alphabets, if they become one."""
    lines = [*["абвгд", "abvgd", "ਅਬਵਗਦ", "અબવગદ", "αβγδ"] * 20, "щ"]
    spec = VocabularySpec(4 + 256 + 40, normalization="latin")
    vocabulary = train_vocabulary(lines, spec, tmp_path / "source.model")
    ids = [i for line in vocabulary.encode(lines) for i in line]
    assert not vocabulary.is_byte_fallback[ids].any()
