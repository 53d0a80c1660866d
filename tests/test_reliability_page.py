"""The pages of faults name a test for each. They all exist, and are as slow as it says."""

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGES = ("reliability.md", "many_processes.md")
TEXT = "\n\n".join((TESTS.parent / "docs" / page).read_text() for page in PAGES)
HEADER = "| fault | what happens | code | test |"


@functools.cache
def functions_of(file: str) -> dict[str, bool]:
    """Returns the functions of a file, and whether each is marked as slow."""
    return {
        node.name: any(ast.unparse(mark) == "pytest.mark.slow" for mark in node.decorator_list)
        for node in ast.parse((TESTS / file).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }


def test_every_test_that_the_page_names_exists_and_is_as_slow_as_it_says():
    named = re.findall(r"`([\w/]+\.py)::(\w+)`( \(slow\))?", TEXT)
    assert len(named) > 60
    for file, name, is_slow in named:
        assert functions_of(file).get(name) == bool(is_slow), f"{file}::{name}"


def test_every_fault_has_a_test():
    tables = TEXT.split(HEADER)[1:]
    rows = [row for table in tables for row in table.strip().split("\n\n")[0].splitlines()[1:]]
    assert len(rows) > 50
    for row in rows:
        assert re.search(r"::test_\w+`|the same \|$", row), row
