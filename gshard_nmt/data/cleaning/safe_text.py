"""Text of a corpus on a terminal: no character moves the cursor, hides text or turns its order around."""

import unicodedata

_KEPT = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Format characters that Persian and Indian languages need inside words."""
_FIRST_STRONG, _END = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
_RIGHT_TO_LEFT = ("R", "AL")


def shown(text: str, limit: int = 90) -> str:
    r"""Returns a text that is safe to print.

    Control and format characters become escapes such as `\x1b` and `\u202e`. A text with letters that
    run from right to left is isolated, so the text beside it keeps its place.

    Args:
      text: any text.
      limit: the most characters to show; 0 shows all.
    """
    if limit and len(text) > limit:
        text = f"{text[: limit - 1]}…"
    start, end = isolates(text)
    return f"{start}{escaped(text)}{end}"


def escaped(text: str) -> str:
    """Returns a text with escapes for control and format characters."""
    return text if text.isprintable() else "".join(map(_safe, text))


def isolates(text: str) -> tuple[str, str]:
    """Returns the marks before and after a text that keep its order apart from the text beside it.

    They are empty if no letter of the text runs from right to left.
    """
    runs_left = any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in text)
    return (_FIRST_STRONG, _END) if runs_left else ("", "")


def _safe(character: str) -> str:
    """Returns a character, or the escape of a character that cannot be seen."""
    if character.isprintable() or character in _KEPT:
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
