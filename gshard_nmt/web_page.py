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


def image(content: bytes, kind: str, alt: str, dark: bytes | None = None) -> str:
    """Returns an element that contains an image.

    Args:
      content: the image.
      kind: "png" or "svg".
      alt: describes the image.
      dark: the image for a dark page; None uses the same image.
    """
    element = f'<img alt="{html.escape(alt)}" src="{_data(content, kind)}">'
    if dark is None:
        return element
    source = f'media="(prefers-color-scheme: dark)" srcset="{_data(dark, kind)}"'
    return f"<picture><source {source}>{element}</picture>"


def _data(content: bytes, kind: str) -> str:
    """Returns the address of an image that is its content."""
    return f"data:{_TYPES[kind]};base64,{base64.b64encode(content).decode()}"
