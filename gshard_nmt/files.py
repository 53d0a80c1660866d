"""Files that a reader sees old or new, never half."""

import os
from pathlib import Path


def write(path: Path, content: bytes | str) -> None:
    """Replaces a file at once: written beside it, then renamed. Text is UTF-8.

    Raises:
      OSError: as writing does.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    temporary.replace(path)
