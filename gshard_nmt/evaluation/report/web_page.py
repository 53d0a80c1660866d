"""The HTML pages that the programs write: one style for all, and no network or other file needed."""

import base64
import html
import string
from collections.abc import Iterable, Sequence
from pathlib import Path

_TYPES = {"png": "image/png", "svg": "image/svg+xml"}
_PAGE = Path(__file__).with_name("page.html")


def page(title: str, headline: str, body: str) -> str:
    """Returns a whole page. `title` and `headline` are plain text, `body` is HTML."""
    return string.Template(_PAGE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title), headline=html.escape(headline), body=body
    )


def image(content: bytes, kind: str, alt: str) -> str:
    """Returns an element that contains a PNG or SVG image."""
    data = base64.b64encode(content).decode()
    return f'<img alt="{html.escape(alt)}" src="data:{_TYPES[kind]};base64,{data}">'


class Markup(str):
    """Text of a cell that is HTML already."""

    __slots__ = ()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], foot: Sequence[str] = ()) -> str:
    """Returns a table that scrolls if the page is narrow.

    The first cell of a row is its headline. Cells are plain text, except `Markup`. `foot` is a last row
    below a line.
    """
    head = "".join(f"<th>{_cell(cell)}</th>" for cell in heads)
    body = "\n".join(map(_row, rows))
    last = f"<tfoot>{_row(foot)}</tfoot>" if foot else ""
    content = f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody>{last}"
    return f"<div class='wide'><table>{content}</table></div>"


def texts(rows: Iterable[tuple[str, str]]) -> str:
    """Returns a table of named sentences. A browser finds the direction of each from its letters."""
    cells = (f'<tr><th>{_cell(n)}</th><td dir="auto">{_cell(t)}</td></tr>' for n, t in rows)
    return f"<table class='sample'>{''.join(cells)}</table>"


def folded(title: str, content: str, is_open: bool = False) -> str:
    """Returns HTML that a click on its title shows or hides."""
    opened = " open" if is_open else ""
    return f"<details{opened}><summary>{html.escape(title)}</summary>{content}</details>"


def _row(cells: Sequence[str]) -> str:
    first, *others = map(_cell, cells)
    return f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in others)}</tr>"


def _cell(text: str) -> str:
    return text if isinstance(text, Markup) else html.escape(text)
