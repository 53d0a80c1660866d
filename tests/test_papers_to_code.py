"""The page that leads from the papers to the code names what exists."""

import ast
import re
from pathlib import Path

import pytest

from tests.test_claims import exists

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "papers_to_code.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| place")
]


def defined(file: Path) -> set[str]:
    """Returns the names of all functions and classes of a file."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_a_row_names_code_and_something_to_see(row):
    _, what, code, see = row
    here: set[str] = set()
    for path, name in re.findall(r"`([\w/]+(?:/|\.py|\.gin))(?:::(\w+))?`", code):
        is_outside = path.startswith(("benchmarks", "configs", "scripts", "examples"))
        place = ROOT / path if is_outside else ROOT / "gshard_nmt" / path
        assert place.exists(), path
        if path.endswith(".py") and not is_outside:
            here |= defined(place)
            assert name in here, f"{path} does not define {name!r}"
    names = set(re.findall(r"`(\w+)`", what))
    assert names <= here, f"{code} does not define {names - here}"
    shown = re.fullmatch(r"`([^`]+)`|\[[\w.]+\]\(([\w.]+\.md)(?:#[\w-]+)?\)", see)
    assert shown, see
    if shown[2]:
        assert (ROOT / "docs" / shown[2]).is_file()
    else:
        assert exists(shown[1].removeprefix(".venv/bin/python ")), see


def test_settings_of_the_page_exist():
    settings = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    for group, field in re.findall(r"`(Model|Mesh|Train|Data)\.(\w+)", PAGE):
        assert f"{group}.{field}" in settings or f"`{field}`" in settings, f"{group}.{field}"
