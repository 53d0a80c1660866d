"""A finding says what a user can do about it."""

import ast
import pathlib

from gshard_nmt.data import cleaning
from gshard_nmt.data.cleaning.findings import ADVICE, Example, Finding


def test_a_finding_as_json_has_its_advice():
    finding = Finding("empty", "fr-en", "train", ("train.fr",), "wrong", (Example(3, "", "x"),))
    assert finding.place == "fr-en train"
    assert finding.to_json()["advice"] == ADVICE["empty"]
    assert finding.to_json()["examples"] == ({"line": 3, "first": "", "second": "x"},)


def test_each_advice_belongs_to_a_kind_that_a_check_reports():
    folder = pathlib.Path(cleaning.__file__).parent
    words = {
        node.value
        for file in folder.glob("*.py")
        if file.name != "findings.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
    }
    assert set(ADVICE) <= words
