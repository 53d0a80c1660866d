"""The layouts of a corpus, and the errors for a corpus that is wrong."""

import contextlib
import encodings.aliases
import gzip
import sys
import types

import fsspec
import numpy as np
import pytest
from fsspec.registry import _registry

from gshard_nmt import paths
from gshard_nmt.data.preparation.inputs import fingerprint
from gshard_nmt.data.sets import corpus
from gshard_nmt.errors import UserError


def write(path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def test_plain_compressed_opus_and_tsv_files_are_read_in_either_direction(tmp_path):
    write(tmp_path / "fr-en/train.fr.gz", "un\ndeux\n")
    write(tmp_path / "fr-en/train.en", "one\ntwo\n")
    write(tmp_path / "de-en/opus.de-en-dev.de", "eins\n")
    write(tmp_path / "de-en/opus.de-en-dev.en", "one\n")
    write(tmp_path / "it-en/test.tsv", "uno\tone\n")
    german, french, italian = corpus.find_pairs(tmp_path)
    assert list(corpus.read_pairs(french, "train", "en", "fr")) == [("one", "un"), ("two", "deux")]
    assert list(corpus.read_pairs(german, "dev", "de", "en")) == [("eins", "one")]
    assert list(corpus.read_pairs(italian, "test", "it", "en")) == [("uno", "one")]
    assert list(corpus.read_pairs(italian, "train", "it", "en")) == []


def test_a_missing_side_and_an_empty_folder_are_errors(tmp_path):
    with pytest.raises(UserError, match="contains no language pair"):
        corpus.find_pairs(tmp_path)
    write(tmp_path / "fr-en/train.fr", "un\n")
    with pytest.raises(UserError, match=r"has train.fr but not train.en; a split needs both files"):
        corpus.find_pairs(tmp_path)


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_corpus_in_a_bucket_is_read_like_a_local_one(tmp_path, bucket, monkeypatch, scheme):
    if scheme == "s3":
        store = type("Store", (fsspec.get_filesystem_class("gs"),), {"protocol": "s3"})
        monkeypatch.setitem(_registry, "s3", store)
        monkeypatch.setitem(sys.modules, "s3fs", types.ModuleType("s3fs"))
    write(tmp_path / "fr-en/train.fr.gz", "un\ndeux\n")
    write(tmp_path / "fr-en/train.en", "one\ntwo\n")
    write(tmp_path / "fr-en/dev.tsv", "trois\tthree\n")
    write(tmp_path / "Books.en-it.it", "uno\n")
    write(tmp_path / "Books.en-it.en", "one\n")
    for file in tmp_path.rglob("*.*"):
        bucket.write(f"texts/c/{file.relative_to(tmp_path)}", file.read_bytes())
    folder = paths.source_path("corpus", f"{scheme}://texts/c")
    local, remote = (corpus.find_pairs(place) for place in (tmp_path, folder))
    assert len(remote) == 2
    assert fingerprint(remote) == fingerprint(local)
    for first, second in zip(local, remote, strict=True):
        assert [text.name for text in first.texts] == [text.name for text in second.texts]
        for text, other in zip(first.texts, second.texts, strict=True):
            assert list(corpus.read_blocks(text)) == list(corpus.read_blocks(other))


def test_an_error_of_the_store_names_the_file(bucket, monkeypatch):
    bucket.write("texts/c/fr-en/train.tsv", b"un\tone\n")
    (pair,) = corpus.find_pairs(paths.source_path("corpus", "gs://texts/c"))

    def refuse(name):
        raise RuntimeError("no quota")

    monkeypatch.setattr(bucket, "read", refuse)
    with pytest.raises(OSError, match=r"no quota: 'gs://texts/c/fr-en/train.tsv'"):
        list(corpus.read_pairs(pair, "train", "fr", "en"))


def test_files_that_name_their_pair_may_lie_in_the_corpus_folder(tmp_path):
    write(tmp_path / "Europarl.en-fr.en", "one\n")
    write(tmp_path / "Europarl.en-fr.fr.gz", "un\n")
    write(tmp_path / "opus.de-en-dev.de", "eins\n")
    write(tmp_path / "opus.de-en-dev.en", "one\n")
    write(tmp_path / "en-it.train.jsonl", '{"en": "one", "it": "uno"}\n')
    write(tmp_path / "README.md", "about\n")
    assert [
        (pair.source, pair.target, text.split, text.format, text.name)
        for pair in corpus.find_pairs(tmp_path)
        for text in pair.texts
    ] == [
        ("de", "en", "dev", "aligned", "opus.de-en-dev.de"),
        ("en", "fr", "train", "aligned", "Europarl.en-fr.en"),
        ("en", "it", "train", "jsonl", "en-it.train.jsonl"),
    ]
    # A file of the same name in the folder of the pair is another text, with another name.
    write(tmp_path / "en-fr/Europarl.en-fr.en", "two\n")
    write(tmp_path / "en-fr/Europarl.en-fr.fr", "deux\n")
    assert len({text.name for pair in corpus.find_pairs(tmp_path) for text in pair.texts}) == 4


def test_folders_that_are_no_pair_are_named(tmp_path):
    write(tmp_path / "fr-en/train.tsv", "un\tone\n")
    write(tmp_path / "fr-en-raw/train.tsv", "un\tone\n")
    write(tmp_path / "fr-en-small/train.tsv", "un\tone\n")
    write(tmp_path / "spanish/train.es", "uno\n")
    write(tmp_path / "xx-en/train.xx", "un\n")
    write(tmp_path / "names/fr-en/train.tsv", "un\tone\n")
    write(tmp_path / "notes/todo", "nothing\n")
    listing = corpus.list_corpus(tmp_path)
    assert [pair.folder.name for pair in listing.pairs] == ["fr-en"]
    assert listing.notes == [
        f"{tmp_path / name} is not read: its name is not two language codes of ISO 639 such as fr-en"
        for name in ("fr-en-raw", "fr-en-small", "spanish", "xx-en")
    ]
    (tmp_path / "fr-en").rename(tmp_path / "xy-en")
    with pytest.raises(UserError, match=r"no language pair; .*\. Left out: .*fr-en-raw is not"):
        corpus.find_pairs(tmp_path)


def test_loose_files_are_named_with_the_place_where_they_belong(tmp_path):
    for name in ("train.de", "train.en", "preprocess.log"):
        write(tmp_path / name, "text\n")
    with pytest.raises(UserError, match=r"contains no language pair; .* Left out: .*train\.de, "):
        corpus.find_pairs(tmp_path)
    write(tmp_path / "fr-en" / "train.tsv", "un\tone\n")
    named = f"{tmp_path / 'train.de'}, {tmp_path / 'train.en'}"
    words = f"{named} are not read: put files into a folder such as fr-en"
    assert corpus.list_corpus(tmp_path).notes == [words]
    write(tmp_path / "Corpus.pt-br-es.es", "uno\n")
    assert "Corpus.pt-br-es.es is not read: " in corpus.list_corpus(tmp_path).notes[0]


ENCODINGS = sorted({*encodings.aliases.aliases.values(), "undefined", "ANSI"})
TEXTS = {
    "train.tsv": b"1\tun chat\ta cat\n2\tdeux\ttwo\n",
    "train.csv": b'fr,en,score\n"un ""chat""",a cat,1\ndeux,two,2\n',
    "train.jsonl": b'{"translation": {"fr": "un chat", "en": "a cat"}, "score": 1}\n',
    "train.tmx": b"<?xml version='1.0' encoding='UTF-8'?><tmx><body><tu><tuv xml:lang='fr'><seg>un</seg>"
    b"</tuv><tuv xml:lang='en'><seg>one</seg></tuv></tu></body></tmx>",
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", TEXTS)
def test_no_file_ends_in_another_error_than_a_message(tmp_path, name):
    """Mutated bytes, and every encoding that Python knows in place of UTF-8."""
    (tmp_path / "fr-en").mkdir()
    path = tmp_path / "fr-en" / name
    path.touch()
    (pair,) = corpus.find_pairs(tmp_path)
    (text,) = pair.inputs("train")
    random = np.random.default_rng(0)
    contents = [TEXTS[name].replace(b"UTF-8", code.encode()) for code in ENCODINGS] + [b""]
    for _ in range(60):
        content = bytearray(TEXTS[name])
        for place in random.integers(0, len(content), random.integers(1, 5)):
            content[place : place + random.integers(0, 3)] = random.bytes(random.integers(0, 4))
        contents.append(bytes(content))
    for content in contents:
        path.write_bytes(content)
        with contextlib.suppress(UserError):
            for block in corpus.read_blocks(text):
                "".join(f"{row.source}{row.target}" for row in block).encode()
