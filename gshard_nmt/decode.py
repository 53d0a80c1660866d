"""gshard-decode: translates text with a trained model."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Protocol

from gshard_nmt.decoding.formats import Render
from gshard_nmt.decoding.pieces import pieces_note
from gshard_nmt.decoding.progress import DecodingProgress
from gshard_nmt.decoding.source_lines import SourceLines

if TYPE_CHECKING:
    from gshard_nmt.decoding.translator import TextTranslator


class Output(Protocol):
    """What gets the translations.

    Attributes:
      lines: the number of input lines whose translations it has.
    """

    lines: int

    def write(self, text: str) -> None:
        """Takes text, which may be lost until `commit` is called."""

    def commit(self, lines: int) -> None:
        """Makes the text last: it is that of the first `lines` input lines."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What to translate, and how to write it.

    Attributes:
      source, target: BCP 47 tags of a direction that the run was trained on.
      render: makes the output of a line.
      rows: the number of sentences in a batch.
    """

    source: str
    target: str
    render: Render
    rows: int = 64


def decode(
    translator: "TextTranslator",
    request: Request,
    lines: SourceLines,
    output: Output,
    progress: DecodingProgress,
) -> None:
    """Translates lines, in order, from the first that the output does not have yet.

    Args:
      translator: the model of a run.
      request: the direction and the format.
      lines: all lines of the input. None has been taken yet.
      output: gets the translations.
      progress: shows how far it is.

    Raises:
      UserError: a line is not UTF-8, or the model has no translation for it, because its numbers are not
        finite.
    """
    lines.skip(output.lines)
    progress.begin(output.lines)
    in_pieces: list[int] = []
    while chunk := lines.take(chunk_size(output.lines, request.rows)):
        number = output.lines
        translations = translator.translate(chunk, request.source, request.target)
        for line, hypotheses in zip(chunk, translations, strict=True):
            number += 1
            output.write(request.render(number, line, hypotheses))
            if hypotheses[0].pieces > 1:
                in_pieces.append(number)
        output.commit(number)
        progress.show(number)
    if in_pieces:
        sys.stderr.write(f"{pieces_note(in_pieces, translator.longest_source)}\n")


def chunk_size(done: int, rows: int) -> int:
    """Returns the number of lines to translate next. They are sorted by length, and written together.

    The first chunks are small, so that the first lines come soon. Sixteen batches are enough to gain from
    sorting. The size depends only on the number of lines before, so a program that was killed goes on
    with the same chunks.

    Args:
      done: the number of lines before.
      rows: the number of sentences in a batch.
    """
    return min(max(done, 2 * rows), 16 * rows)
