"""gshard-decode: lines in, translations out, in order."""

import io

import pytest

from gshard_nmt import decode
from gshard_nmt.decoding.translator import Hypothesis
from gshard_nmt.errors import UserError


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


class Beginning(ShoutingOnce):
    """Puts the prefix before each translation, and scores a pair by its lengths."""

    def translate(self, lines, source, target, prefixes=None, first_line=None):
        assert first_line == 1 + sum(self.chunks)
        translations = super().translate(lines, source, target)
        for prefix, (best,) in zip(prefixes, translations, strict=True):
            yield [Hypothesis(prefix + best.text, best.score)]

    def score(self, pairs, source, target):
        assert (source, target) == ("fr", "en")
        yield from (-len(line) - len(text) / 8 for line, text in pairs)


def test_each_line_is_translated_with_its_prefix():
    text, prefixes = "a\n" * 4096 + "b\r\nc", "x\n" * 4095 + "\ny\r\nz"
    written = run(Beginning(), text, prefixes=io.StringIO(prefixes))
    assert written == "xA\n" * 4095 + "A\nyB\nzC\n"


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ("x\n", "--prefix has fewer lines than the input."),
        ("x\n\n\n", "--prefix has more lines than the input, which has 2."),
    ],
)
def test_there_is_a_prefix_for_each_line(prefixes, message):
    with pytest.raises(UserError) as error:
        run(Beginning(), "a\nb\n", prefixes=io.StringIO(prefixes))
    assert str(error.value).startswith(message)


def scores_of(lines: str, translations: str) -> str:
    output = io.StringIO()
    files = (io.StringIO(lines), io.StringIO(translations))
    decode.score(Beginning(), *files, output, "fr", "en")
    return output.getvalue()


def test_one_score_a_line():
    assert scores_of("ab\nc\n\n", "d\r\n\n\n") == "-2.1250\n-1.0000\n0.0000\n"


@pytest.mark.parametrize(
    ("lines", "translations", "shorter"), [("a\n", "b\nc\n", "the input"), ("a\nb", "c", "--score")]
)
def test_there_is_a_translation_for_each_line(lines, translations, shorter):
    with pytest.raises(UserError) as error:
        scores_of(lines, translations)
    assert str(error.value) == (
        f"{shorter} ends before line 2, and the other file goes on. Give one translation for each line "
        "of the input."
    )


def test_empty_input_gives_empty_output():
    assert run(ShoutingOnce(), "") == ""
