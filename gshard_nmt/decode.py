"""gshard-decode: translates text with a trained model."""

from collections.abc import Iterator
from typing import TextIO

from gshard_nmt.decoding.translator import TextTranslator


def decode(
    translator: TextTranslator,
    lines: TextIO,
    output: TextIO,
    source: str,
    target: str,
    nbest: int = 1,
    scores: bool = False,
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

    Raises:
      UserError: the model has no translation for a line, because its numbers are not finite.
    """
    number = 0
    for chunk in _chunks(lines):
        for hypotheses in translator.translate(chunk, source, target):
            number += 1
            for hypothesis in hypotheses:
                if scores or nbest > 1:
                    output.write(f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}\n")
                else:
                    output.write(hypothesis.text + "\n")
        output.flush()


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
