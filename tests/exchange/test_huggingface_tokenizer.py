"""Tokenizers of Hugging Face: text as the ids and the text of transformers, languages, and mistakes."""

import json
import shutil
from pathlib import Path

import pytest

from gshard_nmt.data.vocabulary import BOS, EOS, Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.huggingface import read_config
from gshard_nmt.exchange.huggingface_tokenizer import read_tokenizer
from tests.exchange.test_huggingface import FAMILIES, GOLDENS, imported


def vocabularies(name: str, folder: Path):
    """Returns the vocabularies of a golden, read from files as a run folder has them."""
    result = []
    for side, order in imported(name).orders.items():
        (folder / f"{side}.model").write_bytes(order.model)
        result.append(Vocabulary.load(folder / f"{side}.model"))
    return result


@pytest.mark.parametrize("name", FAMILIES)
def test_text_becomes_the_ids_of_transformers_and_ids_become_its_text(name, tmp_path):
    """Also with a piece that is no token, which keeps an id that reads as UNK."""
    model = imported(name)
    source, target = vocabularies(name, tmp_path)
    for sentence in model.sentences:
        (ids,) = source.encode_source([sentence["text"]], "en", "fr")
        assert [int(model.orders["source"].rows[i]) for i in ids] == sentence["source"]
        beam = model.ids("target", sentence["beam"][1:])
        assert target.decode([beam]) == [sentence["translation"]]


@pytest.mark.parametrize("name", ["m2m_100", "nllb_moe"])
def test_a_translation_begins_with_the_tag_of_its_language(name, tmp_path):
    model = imported(name)
    _, target = vocabularies(name, tmp_path)
    first = model.ids("target", [model.sentences[0]["greedy"][1]])
    (ids,) = target.encode_target(["Le fichier"], "fr")
    assert target.first("fr") == first == ids[:1]
    assert ids[-1] == EOS
    assert target.decode([ids]) == ["Le fichier"]
    assert target.first("pl") == []


def test_a_target_vocabulary_of_marian_needs_no_tag(tmp_path):
    source, target = vocabularies("marian", tmp_path)
    assert (source.tags("en", "fr"), target.first("fr")) == ([source.tag("<2fr>")], [])
    assert source.size == target.size


@pytest.mark.parametrize(
    ("name", "directions"),
    [
        ("m2m_100", ["de-en", "de-fr", "en-de", "en-fr", "fr-de", "fr-en"]),
        ("nllb_moe", ["de-en", "de-fr", "en-de", "en-fr", "fr-de", "fr-en"]),
        ("marian", ["en-de", "en-fr"]),
    ],
)
def test_the_directions(name, directions):
    tokenizer = read_tokenizer(GOLDENS / name, read_config(GOLDENS / name))
    assert ["-".join(pair) for pair in tokenizer.directions] == directions
    # The decoder begins with a copy of the token that transformers begins with.
    order = tokenizer.orders["target"]
    assert order.rows[BOS] == {"m2m_100": 2, "nllb_moe": 2}.get(name, order.rows[0])
    assert order.never[0] == BOS


@pytest.fixture
def folder(tmp_path):
    """A copy of a golden, to be changed."""
    return Path(shutil.copytree(GOLDENS / "m2m_100", tmp_path / "model"))


def read(folder: Path):
    return read_tokenizer(folder, read_config(folder))


def test_languages_may_be_named_with_their_ids(folder):
    """Of the two files, tokenizer.json says which id a token has."""
    (folder / "special_tokens_map.json").unlink()
    words = len(json.loads((folder / "vocab.json").read_text()))
    added = [{"id": words + n, "content": f"__{c}__"} for n, c in enumerate(("pt", "ns"))]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert read(folder).directions == [("ns", "pt"), ("pt", "ns")]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("sentencepiece.bpe.model", None, "sentencepiece.bpe.model is missing, and the tokenizer"),
        ("sentencepiece.bpe.model", b"\xff", "the SentencePiece file of the folder is damaged"),
        ("special_tokens_map.json", b"{}", "names 0 languages in tokenizer.json"),
        ("vocab.json", b'{"a": 0, "b": 2}', "vocab.json is damaged: its ids are not 0, 1, 2"),
        ("vocab.json", b'{"a": 0, "b": 1}', "its tokens have no <unk>"),
        (
            "vocab.json",
            json.dumps({f"w{n}": n for n in range(200)}).encode(),
            "the tokenizer has an id 202, but by config.json the model has",
        ),
    ],
)
def test_a_damaged_tokenizer_is_refused(folder, file, content, message):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(UserError) as error:
        read(folder)
    assert message in str(error.value)
