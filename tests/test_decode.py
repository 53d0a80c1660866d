"""gshard-decode: lines in, translations out, in order."""

import io

import pytest

from gshard_nmt import decode
from gshard_nmt.decoding.translator import Hypothesis


class Shouting:
    """A translator to capital letters, with the number of characters as second of the n-best."""

    def __init__(self) -> None:
        self.chunks: list[int] = []

    def translate(self, lines, source, target):
        assert (source, target) == ("fr", "en")
        self.chunks.append(len(lines))
        for line in lines:
            yield [Hypothesis(line.upper(), -0.5), Hypothesis(str(len(line)), -1.25)]


class ShoutingOnce(Shouting):
    def translate(self, lines, source, target):
        return ([best] for best, _ in super().translate(lines, source, target))


def run(translator, text: str, **options) -> str:
    output = io.StringIO()
    decode.decode(translator, io.StringIO(text), output, "fr", "en", **options)
    return output.getvalue()


def test_one_translation_a_line():
    assert run(ShoutingOnce(), "ab\r\n\ncd") == "AB\n\nCD\n"


def test_scores_come_with_the_number_of_the_line():
    written = run(ShoutingOnce(), "ab\n\n", scores=True)
    assert written == "1\t-0.5000\tAB\n2\t-0.5000\t\n"


@pytest.mark.parametrize("scores", [False, True])
def test_several_translations_of_a_line_have_the_same_number(scores):
    written = run(Shouting(), "ab\nc\n", nbest=2, scores=scores)
    assert written == "1\t-0.5000\tAB\n1\t-1.2500\t2\n2\t-0.5000\tC\n2\t-1.2500\t1\n"


def test_a_long_input_is_translated_in_chunks_without_a_break_in_the_numbers():
    translator = ShoutingOnce()
    lines = [f"line {i}" for i in range(2 * 4096 + 5)]
    written = run(translator, "\n".join(lines), scores=True).splitlines()
    assert translator.chunks == [4096, 4096, 5]
    assert written == [f"{i + 1}\t-0.5000\tLINE {i}" for i in range(len(lines))]


def test_empty_input_gives_empty_output():
    assert run(ShoutingOnce(), "") == ""
