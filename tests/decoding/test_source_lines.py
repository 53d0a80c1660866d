"""Lines of bytes: what ends a line, what is not text, and pipes that stay open."""

import gzip
import io
import json
import os

import pytest

from gshard_nmt.decoding import source_lines
from gshard_nmt.decoding.source_lines import SourceLines, Survey, chosen_format, rendered, survey
from gshard_nmt.decoding.text_translator import Hypothesis
from gshard_nmt.errors import UserError


def lines_of(content: bytes, count: int = 2) -> list[str]:
    lines, taken = SourceLines(io.BytesIO(content), "x"), []
    while chunk := lines.take(count):
        assert len(chunk) <= count
        taken += chunk
    assert lines.number == len(taken)
    return taken


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\n\r\nb\r\n", ["a", "", "b"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        ("a\rb\vc\x85d\u2028e\0f\n".encode(), ["a b\vc\x85d\u2028e\0f"]),
        (b"x" * 200_000 + b"\n" + b"y" * 100_000, ["x" * 200_000, "y" * 100_000]),
    ],
)
def test_only_newlines_end_a_line(content, expected):
    assert lines_of(content) == expected
    assert lines_of(content, 1000) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_lines_are_the_same_however_their_bytes_come(monkeypatch, size):
    monkeypatch.setattr(source_lines, "_BLOCK", size)
    assert lines_of("é\n\nüü\nend".encode()) == ["é", "", "üü", "end"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"good\nb\xe9d\n",
            "x, line 2, byte 2: 0xe9 is not UTF-8. Convert the text, for instance with iconv -f "
            "ISO-8859-1 -t UTF-8.",
        ),
        (b"good\ncut\xc3", "x, line 2, byte 4: 0xc3 is not UTF-8. "),
        (b"a\xed\xa0\x80\n", "x, line 1, byte 2: 0xed is not UTF-8. "),
        ("hé\n".encode("utf-16"),
         "x is UTF-16, not UTF-8. Convert it, for instance with iconv -f UTF-16"),
    ],
)  # fmt: skip
def test_bytes_that_are_not_utf8_are_named_after_the_lines_before_them(content, words):
    lines = SourceLines(io.BytesIO(content), "x")
    if b"good" in content:
        assert lines.take(100) == ["good"]
    with pytest.raises(UserError) as error:
        lines.take(100)
    assert str(error.value).startswith(words)


def test_a_survey_counts_the_lines_and_finds_bad_bytes(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"a\n" * 9000 + b"b")
    lines = SourceLines(io.BytesIO(path.read_bytes()), "x")
    lines.skip(10_000)
    assert survey(path, "x") == Survey(9001, lines.sha256)
    path.write_bytes(b"a\n" * 9000 + b"\xff")
    with pytest.raises(UserError, match=r"^--input text, line 9001, byte 1: 0xff is not UTF-8"):
        survey(path, "--input text")


def test_a_pipe_that_stays_open_gives_the_lines_that_have_come():
    reader, writer = os.pipe()
    with open(reader, "rb") as stream, open(writer, "wb", buffering=0) as other:
        lines = SourceLines(stream, "stdin")
        other.write(b"a\nb\nhal")
        assert lines.take(100) == ["a", "b"]
        other.write(b"f\n")
        assert lines.take(100) == ["half"]
        other.write(b"end")
        other.close()
        assert lines.take(100) == ["end"]
        assert lines.take(100) == []


def test_a_compressed_file_has_the_survey_of_its_text(tmp_path):
    text = "un\n" + "deux\n" * 70_000
    (tmp_path / "text").write_text(text)
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.encode()))
    assert survey(tmp_path / "text.gz", "x") == survey(tmp_path / "text", "x")
    with source_lines.opened(tmp_path / "text.gz") as stream:
        lines = SourceLines(stream, "x")
        lines.skip(1)
        assert lines.take(2) == ["deux", "deux"]
    (tmp_path / "text.gz").write_bytes(gzip.compress(text.encode())[:50])
    with pytest.raises(UserError, match=r"text.gz is damaged after line"):
        survey(tmp_path / "text.gz", "x")


def test_line_ends_of_old_macs_are_refused():
    with pytest.raises(UserError, match=r"^x has carriage returns and no newline characters.* tr "):
        lines_of(b"one\rtwo\rthree\r")


NBEST = [Hypothesis("Ä b", -0.123456789), Hypothesis("", -2.0)]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("text", "Ä b\n"),
        ("tsv", "7\t-0.1235\tÄ b\n7\t-2.0000\t\n"),
        (
            "jsonl",
            '{"line": 7, "source": "a\\tb", "translations": [{"text": "Ä b", "score": -0.123456789}, '
            '{"text": "", "score": -2.0}]}\n',
        ),
    ],
)
def test_formats(name, written):
    assert rendered(name, 7, "a\tb", NBEST) == written


def test_a_json_object_is_one_line_whatever_the_source_has():
    source = "a\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0b"
    written = rendered("jsonl", 1, source, [Hypothesis("x", -1.0, pieces=3)])
    assert len(written.splitlines()) == 1
    record = json.loads(written)
    assert record["source"] == source
    assert record["pieces"] == 3


@pytest.mark.parametrize(
    ("name", "nbest", "scores", "chosen"),
    [
        (None, 1, False, "text"),
        (None, 1, True, "tsv"),
        (None, 2, False, "tsv"),
        ("text", 1, False, "text"),
        ("tsv", 1, False, "tsv"),
        ("jsonl", 3, True, "jsonl"),
    ],
)
def test_the_format_follows_from_the_other_flags_unless_it_is_named(name, nbest, scores, chosen):
    assert chosen_format(name, nbest, scores) == chosen


@pytest.mark.parametrize(
    ("nbest", "scores", "words"), [(2, False, "--nbest is 2"), (1, True, "--scores")]
)
def test_text_has_no_place_for_scores_or_several_translations(nbest, scores, words):
    with pytest.raises(UserError, match=rf"^--format is text.*{words}.*Give --format tsv or jsonl"):
        chosen_format("text", nbest, scores)
