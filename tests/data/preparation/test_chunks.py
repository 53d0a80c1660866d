"""Chunks of text: what is read is what was written, and the split depends on the rows alone."""

from pathlib import Path

import pytest

from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Chunk, Part
from gshard_nmt.data.sets.corpus import SentencePair

ROWS = [
    SentencePair("un chat", "one cat", 0.5),
    SentencePair("", "東京\u2028\r", None),
    SentencePair("é\x85", "", -1.0),
]


@pytest.mark.parametrize("rows", [ROWS, [row._replace(score=None) for row in ROWS], ROWS[1:2], []])
def test_what_is_read_is_what_was_written(tmp_path, rows):
    chunks.write(tmp_path / "chunk", chunks.content_of(Chunk.of(rows)))
    chunk = chunks.read(tmp_path / "chunk")
    assert chunk.rows() == rows
    assert len(chunk) == len(rows)


def test_the_bytes_are_those_of_the_docstring():
    chunk = Chunk(["un chat", "oui"], ["one cat", "yes"])
    assert chunks.content_of(chunk).decode().splitlines() == [
        '{"rows": 2, "bytes": [12, 12], "scores": false}',
        *("un chat", "oui", "one cat", "yes"),
    ]


def test_a_newline_in_a_row_becomes_a_space(tmp_path):
    chunks.write(tmp_path / "chunk", chunks.content_of(Chunk(["a\nb", "c"], ["d", "\n"])))
    assert chunks.read(tmp_path / "chunk").rows() == [("a b", "d", None), ("c", " ", None)]


def test_a_chunk_has_a_bounded_number_of_rows_and_characters(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 8)
    monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 50)
    monkeypatch.setattr(chunks, "_CHECKED_ROWS", 4)
    monkeypatch.setattr(chunks, "_FEW_ROWS", 2)
    monkeypatch.setattr(chunks, "_LONG", 200)
    rows = [SentencePair(f"{i}", "x" * (20 if i < 8 else 1)) for i in range(21)]
    for size in (1, 3, 30):
        blocks = [rows[i : i + size] for i in range(0, len(rows), size)]
        parts = list(chunks.split([[], *blocks]))
        assert [len(part) for part in parts] == [4, 4, 8, 5]
        assert [row for part in parts for row in part.rows()] == rows
    # A few lines may have more text than a chunk.
    assert [len(part) for part in chunks.split([[SentencePair("x" * 150, "")] * 6])] == [2, 2, 2]


def test_shards_of_a_large_text_are_larger(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 10)
    monkeypatch.setattr(chunks, "SHARDS", 4)
    monkeypatch.setattr(chunks, "LARGEST_SHARD", 40)

    def sizes(*rows):
        groups = chunks.groups([Part(Path(str(n)), count) for n, count in enumerate(rows)])
        return [tuple(part.rows for part in own) for own in groups]

    assert sizes() == sizes(0, 0) == []
    assert sizes(10, 10, 3) == [(10,), (10,), (3,)]
    assert sizes(3, 3, 0, 3, 9, 1) == [(3, 3, 0, 3), (9, 1)]
    assert sizes(*[10] * 8) == [(10, 10)] * 4
    assert [len(own) for own in sizes(*[10] * 40)] == [4] * 10
