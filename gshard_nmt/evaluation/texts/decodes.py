"""The translations of a test set, stored in `decodes/` of a run folder to be used again.

`SPLIT.fr-en.txt` has one translation a line, and `SPLIT.fr-en.json` describes their origin.
The description has the SHA-256 of the text. A text with another SHA-256 is never used, for example if it
was cut or edited, or if its description was not written yet.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files, json_shape
from gshard_nmt.json_shape import anything, fields, mapping_of, text

_ABOUT = fields({"identity": mapping_of(anything()), "made_by": text(), "sha256": text()})


def load(folder: Path, name: str, identity: Mapping[str, Any]) -> tuple[list[str], str] | None:
    """Returns stored translations, and the description of how they were made.

    Args:
      folder: the folder of the translations.
      name: the split and the direction, such as "test.fr-en".
      identity: everything that the translations depend on, as `store` got it.

    Returns:
      The translations and the text that describes how they were made; None if there are none, if they
      are damaged, or if their identity differs.
    """
    try:
        about = json_shape.parse((folder / f"{name}.json").read_bytes(), _ABOUT)
        lines = (folder / f"{name}.txt").read_bytes()
        if about["identity"] != identity or about["sha256"] != hashlib.sha256(lines).hexdigest():
            return None
        return lines.decode("utf-8").split("\n")[:-1], about["made_by"]
    except (OSError, ValueError):
        return None


def store(
    folder: Path, name: str, identity: Mapping[str, Any], lines: Sequence[str], made_by: str
) -> None:
    """Stores translations for `load`.

    Args:
      folder: the folder of the translations; it is made if it does not exist.
      name: the split and the direction, such as "test.fr-en".
      identity: everything that the translations depend on, as values for JSON.
      lines: the translations, without newline characters.
      made_by: how they were made.

    Raises:
      OSError: a file cannot be written.
    """
    folder.mkdir(exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    about = {
        "identity": identity,
        "made_by": made_by,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    files.write(folder / f"{name}.txt", content)
    files.write(folder / f"{name}.json", json.dumps(about, indent=1) + "\n")


def descriptions(folder: Path) -> dict[str, bytes]:
    """Returns the descriptions of all stored translations as they are, by name such as "test.fr-en".

    Files that cannot be read are left out.
    """
    contents = {}
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError):
            contents[path.stem] = path.read_bytes()
    return contents


def translated_again(folder: Path, before: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Returns a fact of the report for each stored translation that did not fit and was made again.

    Args:
      folder: the folder of the translations.
      before: their descriptions before the evaluation.
    """
    now = descriptions(folder)
    return [
        ("translated again", f"{name}: what was stored is of other weights, settings or text")
        for name, description in before.items()
        if now.get(name) != description
    ]
