"""The HTML pages that the programs write: one style for all, and no network or other file needed."""

import base64
import html
import string
from pathlib import Path

_TYPES = {"png": "image/png", "svg": "image/svg+xml"}


def page(title: str, headline: str, body: str) -> str:
    """Returns a whole page. `title` and `headline` are plain text, `body` is HTML."""
    template = Path(__file__).with_name("templates") / "page.html"
    return string.Template(template.read_text(encoding="utf-8")).substitute(
        title=html.escape(title), headline=html.escape(headline), body=body
    )


def image(content: bytes, kind: str, alt: str) -> str:
    """Returns an <img> element that contains the image. `kind` is "png" or "svg"; `alt` describes it."""
    data = base64.b64encode(content).decode()
    return f'<img alt="{html.escape(alt)}" src="data:{_TYPES[kind]};base64,{data}">'
