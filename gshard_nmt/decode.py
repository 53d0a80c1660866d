"""gshard-decode: translates text with a trained model."""

import itertools
from collections.abc import Iterator
from typing import Any, TextIO

from gshard_nmt.decoding.translator import TextTranslator
from gshard_nmt.errors import UserError


def decode(
    translator: TextTranslator,
    lines: TextIO,
    output: TextIO,
    source: str,
    target: str,
    nbest: int = 1,
    scores: bool = False,
    prefixes: TextIO | None = None,
) -> None:
    """Translates a stream of lines, in order.

    Args:
      translator: the model of a run. It gives `nbest` translations of each line.
      lines: one sentence a line.
      output: gets one translation a line. With `scores`, or if `nbest` is above 1, a line has
        three columns, separated by tabs: number of the input line (from 1), score, text.
      source, target: BCP 47 tags of a direction that the run was trained on.
      nbest: number of translations of each line.
      scores: whether to write scores.
      prefixes: the beginning of each translation, one a line; an empty line leaves it free.

    Raises:
      UserError: the model has no translation for a line, because its numbers are not finite. Or the
        prefixes do not have as many lines as the input, or a prefix is too long.
    """
    number = 0
    for chunk in _chunks(lines):
        options: dict[str, Any] = {}
        if prefixes is not None:
            options = {"prefixes": _next_prefixes(prefixes, len(chunk)), "first_line": number + 1}
        for hypotheses in translator.translate(chunk, source, target, **options):
            number += 1
            for hypothesis in hypotheses:
                if scores or nbest > 1:
                    output.write(f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}\n")
                else:
                    output.write(hypothesis.text + "\n")
        output.flush()
    if prefixes is not None and next(prefixes, None) is not None:
        raise UserError(
            f"--prefix has more lines than the input, which has {number}. Give one prefix for each "
            "line; an empty line means that the translation may begin with anything."
        )


def score(
    translator: TextTranslator,
    lines: TextIO,
    translations: TextIO,
    output: TextIO,
    source: str,
    target: str,
) -> None:
    """Writes the score of a given translation of each line, in order.

    Args:
      translator: the model of a run.
      lines: source text, one sentence a line.
      translations: their translations, one a line.
      output: gets one score a line.
      source, target: BCP 47 tags of a direction that the run was trained on.

    Raises:
      UserError: the two files have different numbers of lines, or a line is too long to be scored.
    """
    for value in translator.score(_pairs(lines, translations), source, target):
        output.write(f"{value:.4f}\n")
    output.flush()


def _pairs(lines: TextIO, translations: TextIO) -> Iterator[tuple[str, str]]:
    """Yields each line with its translation, without newline characters."""
    for number, (line, text) in enumerate(itertools.zip_longest(lines, translations), 1):
        if line is None or text is None:
            shorter = "the input" if line is None else "--score"
            raise UserError(
                f"{shorter} ends before line {number}, and the other file goes on. Give one translation "
                "for each line of the input."
            )
        yield line.rstrip("\r\n"), text.rstrip("\r\n")


def _next_prefixes(prefixes: TextIO, count: int) -> list[str]:
    """Returns the next `count` lines of a file of prefixes, without newline characters."""
    chunk = [line.rstrip("\r\n") for line in itertools.islice(prefixes, count)]
    if len(chunk) < count:
        raise UserError(
            "--prefix has fewer lines than the input. Give one prefix for each line; an empty line means "
            "that the translation may begin with anything."
        )
    return chunk


def _chunks(lines: TextIO, size: int = 4096) -> Iterator[list[str]]:
    """Yields the lines in lists, without newline characters.

    The lists are long enough to be worth sorting by length.
    """
    chunk: list[str] = []
    for line in lines:
        chunk.append(line.rstrip("\r\n"))
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
