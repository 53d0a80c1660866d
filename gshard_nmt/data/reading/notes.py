"""Notes about text that is read in another way than the user may expect."""

import sys
from collections.abc import Sequence


def note(text: str) -> None:
    """Writes a note to stderr. The text has no full stop."""
    sys.stderr.write(f"note: {text}.\n")


def listed(names: Sequence[object], most: int = 3) -> str:
    """Returns the first names and the number of the others."""
    rest = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + rest
