"""gshard-decode: lines in, translations out, in order."""

import io
import types

import pytest

from gshard_nmt.decode import Request, chunk_size, decode
from gshard_nmt.decoding.formats import FORMATS
from gshard_nmt.decoding.progress import DecodingProgress
from gshard_nmt.decoding.source_lines import SourceLines
from gshard_nmt.decoding.translator import Hypothesis


class Shouting:
    """A translator to capital letters, with the number of characters as second of the n-best.

    A line with a semicolon is one that is translated in two pieces.
    """

    longest_source = 64

    def __init__(self, nbest: int = 1) -> None:
        self.nbest = nbest
        self.chunks: list[int] = []

    def translate(self, lines, source, target):
        assert (source, target) == ("fr", "en")
        self.chunks.append(len(lines))
        for line in lines:
            pieces = 1 + line.count(";")
            best = [
                Hypothesis(line.upper(), -0.5, pieces),
                Hypothesis(str(len(line)), -1.25, pieces),
            ]
            yield best[: self.nbest]


class Sheet:
    """An output in memory, with the number of lines at each commit."""

    def __init__(self, lines: int = 0) -> None:
        self.lines, self.text, self.commits = lines, "", []

    def write(self, text):
        self.text += text

    def commit(self, lines):
        self.lines = lines
        self.commits.append(lines)


def run(translator, text: str, form: str = "text", rows: int = 64, done: int = 0) -> Sheet:
    output = Sheet(done)
    request = Request("fr", "en", FORMATS[form], rows)
    lines = SourceLines(io.BytesIO(text.encode()), "stdin")
    decode(translator, request, lines, output, DecodingProgress(None, quiet=True))
    return output


def test_one_translation_a_line():
    assert run(Shouting(), "ab\r\n\ncd").text == "AB\n\nCD\n"


def test_scores_come_with_the_number_of_the_line():
    assert run(Shouting(), "ab\n\n", "tsv").text == "1\t-0.5000\tAB\n2\t-0.5000\t\n"


def test_several_translations_of_a_line_have_the_same_number():
    written = run(Shouting(nbest=2), "ab\nc\n", "tsv").text
    assert written == "1\t-0.5000\tAB\n1\t-1.2500\t2\n2\t-0.5000\tC\n2\t-1.2500\t1\n"


def test_a_long_input_is_translated_in_chunks_without_a_break_in_the_numbers():
    translator = Shouting()
    lines = [f"line {i}" for i in range(133)]
    output = run(translator, "\n".join(lines), "tsv", rows=4)
    assert translator.chunks == [8, 8, 16, 32, 64, 5]
    assert output.commits == [8, 16, 32, 64, 128, 133]
    assert output.text.splitlines() == [f"{i + 1}\t-0.5000\tLINE {i}" for i in range(len(lines))]


@pytest.mark.parametrize("done", [8, 16, 64, 133])
def test_lines_that_are_done_are_skipped_and_the_chunks_stay_the_same(done):
    translator = Shouting()
    lines = [f"line {i}" for i in range(133)]
    output = run(translator, "\n".join(lines), "tsv", rows=4, done=done)
    assert output.commits == [end for end in (8, 16, 32, 64, 128, 133) if end > done]
    assert output.text.splitlines() == [f"{i + 1}\t-0.5000\tLINE {i}" for i in range(done, 133)]


def test_a_chunk_is_never_larger_than_sixteen_batches():
    assert [chunk_size(done, 64) for done in (0, 128, 512, 5000)] == [128, 128, 512, 1024]


def test_empty_input_gives_empty_output():
    assert run(Shouting(), "").text == ""


def test_lines_that_were_translated_in_pieces_are_named_once(capsys):
    run(Shouting(), "a;b\nc\n" * 20, rows=4)
    assert capsys.readouterr().err == (
        "20 lines have more than 64 tokens, so they were translated in pieces: lines 1, 3, 5, 7, 9 and "
        "15 more.\n"
    )


def test_the_lines_before_an_error_are_written():
    class Failing(Shouting):
        def translate(self, lines, source, target):
            assert lines != ["b"] * 2, "a defect"
            return super().translate(lines, source, target)

    output = Sheet()
    lines = types.SimpleNamespace(
        take=iter([["a"] * 2, ["b"] * 2]).__next__, skip=lambda count: None
    )
    lines.take = lambda count, take=lines.take: take()
    with pytest.raises(AssertionError, match="a defect"):
        decode(
            *(Failing(), Request("fr", "en", FORMATS["text"], 1), lines, output),
            DecodingProgress(None, quiet=True),
        )
    assert (output.text, output.lines) == ("A\nA\n", 2)
