"""The one look of the HTML pages that the programs write; a page needs no network and no other file."""

import base64
import html
import string
from pathlib import Path

_TYPES = {"png": "image/png", "svg": "image/svg+xml"}


def page(title: str, headline: str, body: str) -> str:
    """A whole page; title and headline are plain text, the body is HTML."""
    template = Path(__file__).with_name("templates") / "page.html"
    return string.Template(template.read_text(encoding="utf-8")).substitute(
        title=html.escape(title), headline=html.escape(headline), body=body
    )


def image(content: bytes, kind: str, alt: str) -> str:
    """A "png" or "svg" inside the page, with its description for who cannot see it."""
    data = base64.b64encode(content).decode()
    return f'<img alt="{html.escape(alt)}" src="data:{_TYPES[kind]};base64,{data}">'
