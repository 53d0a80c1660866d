"""Shards of text: the records are those of the vocabularies, whatever the blocks."""

import pytest

from gshard_nmt.data.preparation import chunks, tokenizing
from gshard_nmt.data.preparation.chunks import Chunk, Part
from gshard_nmt.data.preparation.tokenizing import tokenize
from gshard_nmt.data.text.vocabulary import EOS, Vocabulary, VocabularySpec, train_vocabulary

SOURCES = ["un deux", "", "trois " * 9, "東京 x", "deux un trois"]
TARGETS = ["one two", "x", "three", "Tokyo ü", "two one three " * 5]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for side, lines, tags in (("source", SOURCES, ("<2en>", "<fr>")), ("target", TARGETS, ())):
        spec = VocabularySpec(320, "unigram", tags=tags)
        train_vocabulary([line for line in lines for _ in range(5)], spec, folder / f"{side}.model")
    return folder / "source.model", folder / "target.model"


@pytest.mark.parametrize("block", [1, 2, 100])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_records_are_ids_of_the_vocabularies(tmp_path, monkeypatch, models, block, is_reversed):
    monkeypatch.setattr(tokenizing, "_BLOCK", block)
    sides = (TARGETS, SOURCES) if is_reversed else (SOURCES, TARGETS)
    chunks.write(tmp_path / "chunk", chunks.content_of(Chunk(*sides)))
    parts = [Part(tmp_path / "chunk", 5)]
    written = []

    class Writer:
        def __init__(self, *_):
            pass

        def write(self, examples):
            written.extend(examples)

        def close(self):
            return ()

    monkeypatch.setattr(tokenizing, "ShardWriter", Writer)
    result = tokenize(tmp_path, parts, is_reversed, ("fr", "en", ""), models, (24, 24))
    source, target = map(Vocabulary.load, models)
    targets = [[*target.first("en"), *ids, EOS] for ids in target.encode(TARGETS)]
    sources = source.encode_source(SOURCES, "fr", "en")
    pairs = [(a, b) for a, b in zip(sources, targets, strict=True) if len(a) <= 24 and len(b) <= 24]
    assert 1 < len(pairs) < 5
    assert written == pairs
    assert result["examples"] == len(pairs)
    assert result["source_tokens"] == sum(len(a) for a, _ in pairs)
    assert result["target_tokens"] == sum(len(b) for _, b in pairs)
    flags = [(source.is_byte_fallback, 0), (target.is_byte_fallback, 1)]
    assert result["spelled_tokens"] == sum(flag[p[i]].sum() for flag, i in flags for p in pairs)
