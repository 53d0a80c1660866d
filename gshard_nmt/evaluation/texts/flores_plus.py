"""The files of FLORES+ as they are published: JSON lines or Parquet, one file for each language."""

import gzip
import importlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gshard_nmt.data.reading.rows import encodable
from gshard_nmt.errors import UserError

SUFFIXES = (".jsonl", ".parquet")

_TEXTS = ("text", "sentence")
"""The columns that may have the sentences; the first is that of FLORES+."""


def is_one(path: Path) -> bool:
    """Returns whether a file has one of these formats, by its name."""
    return path.name.removesuffix(".gz").endswith(SUFFIXES)


def read(path: Path) -> list[str]:
    """Reads the sentences of a language, in the order of their ids if all rows have one.

    Raises:
      UserError: the file cannot be read or has no text, or it is Parquet and pyarrow is not installed.
    """
    is_parquet = path.name.endswith(".parquet")
    rows = list(_parquet_rows(path) if is_parquet else _json_rows(path))
    if not rows:
        return []
    column = next((name for name in _TEXTS if name in rows[0][1]), None)
    if column is None:
        raise UserError(
            f"{path} has the columns {', '.join(rows[0][1])}; the sentences must be in text. Give the "
            "files of FLORES+ as they are published."
        )
    for place, row in rows:
        if not isinstance(row.get(column), str):
            raise UserError(
                f"{place}: {column} is {row.get(column)!r}; it must be text. Download the file again."
            )
    if all(isinstance(row.get("id"), int) for _, row in rows):
        rows.sort(key=lambda entry: entry[1]["id"])
    # A translation is a line, so a sentence must be one too.
    return [" ".join(encodable(row[column]).splitlines()) for _, row in rows]


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place and the content of each row."""
    number = 0
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("it is no object")
                yield f"{path}, line {number}", row
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        place = f", line {number}" if number else ""
        raise UserError(
            f"{path}{place} cannot be read ({error}); each line must be a JSON object. Download the file "
            "again."
        ) from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place and the content of each row."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            f"{path} is a Parquet file, and the package pyarrow is not installed. Install it with: pip "
            "install pyarrow; or write one sentence a line into a text file."
        ) from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # of the disk or the server
        raise UserError(f"{path} cannot be read ({error}). Download the file again.") from error
    for number, row in enumerate(rows, 1):
        yield f"{path}, row {number}", row
