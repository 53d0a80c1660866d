"""gshard-decode: translates text with a trained model."""

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Protocol

from gshard_nmt.decoding.formats import Render
from gshard_nmt.decoding.pieces import pieces_note
from gshard_nmt.decoding.progress import DecodingProgress
from gshard_nmt.decoding.source_lines import SourceLines
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.decoding.text_translator import TextTranslator


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
    prefixes: SourceLines | None = None,
) -> None:
    """Translates lines, in order, from the first that the output does not have yet.

    Args:
      translator: the model of a run.
      request: the direction and the format.
      lines: all lines of the input. None has been taken yet.
      output: gets the translations.
      progress: shows how far it is.
      prefixes: the beginning of the translation of each line; an empty line leaves it free.

    Raises:
      UserError: a line is not UTF-8, or the model has no translation for it, because its numbers are not
        finite. Or the prefixes do not have as many lines as the input, or one is too long.
    """
    lines.skip(output.lines)
    if prefixes is not None:
        prefixes.skip(output.lines)
    progress.begin(output.lines)
    in_pieces: list[int] = []
    while chunk := lines.take(chunk_size(output.lines, request.rows)):
        number = output.lines
        options: dict[str, Any] = {}
        if prefixes is not None:
            begins = _lines_beside(prefixes, "--prefix", number, len(chunk))
            options = {"prefixes": begins, "first_line": number + 1}
        translations = translator.translate(chunk, request.source, request.target, **options)
        for line, hypotheses in zip(chunk, translations, strict=True):
            number += 1
            output.write(request.render(number, line, hypotheses))
            if hypotheses[0].pieces > 1:
                in_pieces.append(number)
        output.commit(number)
        progress.show(number)
    if prefixes is not None:
        _check_ended(prefixes, "--prefix", output.lines)
    if in_pieces:
        sys.stderr.write(f"{pieces_note(in_pieces, translator.longest_source)}\n")


def score(
    translator: "TextTranslator",
    request: Request,
    lines: SourceLines,
    translations: SourceLines,
    output: Output,
    progress: DecodingProgress,
) -> None:
    """Writes the score of a given translation of each line, in order.

    Args:
      translator: the model of a run.
      request: the direction.
      lines: all lines of the input. None has been taken yet.
      translations: their translations.
      output: gets one score a line.
      progress: shows how far it is.

    Raises:
      UserError: the two files have different numbers of lines, or a line is too long to be scored.
    """
    lines.skip(output.lines)
    translations.skip(output.lines)
    progress.begin(output.lines)
    while chunk := lines.take(chunk_size(output.lines, request.rows)):
        number = output.lines
        texts = _lines_beside(translations, "--score", number, len(chunk))
        pairs = zip(chunk, texts, strict=True)
        for value in translator.score(pairs, request.source, request.target, first_line=number + 1):
            output.write(f"{value:.4f}\n")
        output.commit(number + len(chunk))
        progress.show(output.lines)
    _check_ended(translations, "--score", output.lines)


def _lines_beside(lines: SourceLines, flag: str, before: int, count: int) -> list[str]:
    """Returns the next `count` lines of a file that is read beside the input.

    Args:
      lines: the lines of the file.
      flag: the flag that names the file.
      before: the number of lines that have been read.
      count: the number of lines to read.
    """
    texts: list[str] = []
    while len(texts) < count and (more := lines.take(count - len(texts))):
        texts += more
    if len(texts) < count:
        raise UserError(
            f"the file of {flag} ends after line {before + len(texts)}, and the input goes on. Give it "
            "one line for each line of the input."
        )
    return texts


def _check_ended(lines: SourceLines, flag: str, count: int) -> None:
    """Raises UserError if a file that is read beside the input has more lines than the input."""
    if lines.take(1):
        raise UserError(
            f"the file of {flag} has more lines than the input, which has {count}. Give it one line for "
            "each line of the input."
        )


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
