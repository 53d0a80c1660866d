"""The formats of the output of gshard-decode: text, tab-separated values, and JSON lines."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.decoding.translator import Hypothesis

Render = Callable[[int, str, Sequence["Hypothesis"]], str]
"""(number of the line, from 1; the line; its translations, best first) -> text with newlines."""

_SEPARATORS = "\x85\N{LINE SEPARATOR}\N{PARAGRAPH SEPARATOR}"
"""What some programs take for the end of a line, and JSON need not escape."""


def as_text(number: int, source: str, translations: Sequence["Hypothesis"]) -> str:
    """Returns the best translation alone."""
    del number, source
    return f"{translations[0].text}\n"


def as_tsv(number: int, source: str, translations: Sequence["Hypothesis"]) -> str:
    """Returns a row for each translation: number of the line, score, text."""
    del source
    return "".join(f"{number}\t{best.score:.4f}\t{best.text}\n" for best in translations)


def as_jsonl(number: int, source: str, translations: Sequence["Hypothesis"]) -> str:
    """Returns a JSON object in one line: "line", "source", "translations"; "pieces" if it was split."""
    record = {
        "line": number,
        "source": source,
        "translations": [{"text": best.text, "score": best.score} for best in translations],
    }
    if translations[0].pieces > 1:
        record["pieces"] = translations[0].pieces
    text = json.dumps(record, ensure_ascii=False)
    for separator in _SEPARATORS:
        text = text.replace(separator, f"\\u{ord(separator):04x}")
    return text + "\n"


FORMATS: dict[str, Render] = {"text": as_text, "tsv": as_tsv, "jsonl": as_jsonl}
"""The formats by the values of --format."""


def chosen_format(name: str | None, nbest: int, scores: bool) -> str:
    """Returns the name of the format that the flags ask for.

    Args:
      name: --format; None if it is not given. Then it is "tsv" with scores or several translations, and
        otherwise "text".
      nbest: --nbest.
      scores: --scores.

    Raises:
      UserError: the format has no place for what the other flags ask for.
    """
    if name == "text" and nbest > 1:
        raise UserError(
            f"--format is text, which has one translation a line, and --nbest is {nbest}. Give --format "
            "tsv or jsonl, or leave out --nbest."
        )
    if name == "text" and scores:
        raise UserError(
            "--format is text, which has no scores, and --scores is given. Give --format tsv or jsonl, "
            "or leave out --scores."
        )
    return name or ("tsv" if scores or nbest > 1 else "text")
