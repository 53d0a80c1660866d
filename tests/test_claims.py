"""Every claim of docs/claims.md stands on its page, and names a test or a program that exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MARKS = ("three seeds", "one run", "exact")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (DOCS / "claims.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and re.search(r"\]\([^)]+\) \| ", line)
]
PROGRAMS = re.findall(r'"(gshard-\w+) = ', (ROOT / "setup.py").read_text(encoding="utf-8"))
TARGETS = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def numbers(text: str) -> set[str]:
    """Returns the numbers of a text as they are written, without those in backticks and links."""
    text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)
    return {number.rstrip(".,") for number in re.findall(r"(?<![\w.])[+-]?\d[\d.,]*", text)}


def exists(command: str) -> bool:
    """Returns whether the program, the file and test, or the target of make, and the config exist."""
    first, *words = command.split()
    for config in words[words.index("--config") + 1 :][:1] if "--config" in words else ():
        assert (ROOT / f"configs/experiments/{config}.gin").is_file(), config
    if first == "make":
        return words[0] in TARGETS
    file, _, test = first.partition("::")
    if test:
        body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        return test in {node.name for node in body if isinstance(node, ast.FunctionDef)}
    return first in PROGRAMS or (ROOT / file).is_file()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_claim_stands_on_its_page_and_can_be_shown(row):
    claim, link, mark, commands = row
    page = (DOCS / re.search(r"\(([^)#]+)", link)[1]).read_text(encoding="utf-8")
    assert mark in MARKS
    assert mark == "exact" or mark in " ".join(page.lower().split()), f"{link} does not say {mark}"
    assert not numbers(claim) - numbers(page), f"{link} has other numbers"
    assert commands.startswith("`")
    assert all(map(exists, re.findall(r"`([^`]+)`", commands)))


def test_every_score_and_every_ratio_of_the_readme_is_a_claim():
    """These are the numbers of sentences with BLEU, nats or times, and the bold ones of tables."""
    claimed = {number for row in ROWS if "README" in row[1] for number in numbers(row[0])}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = "\n".join(line for line in text.splitlines() if not line.startswith(("|", "    ")))
    sentences = re.split(r"(?<=[.:;])\s|\n\n", prose)
    scores = [s for s in sentences if re.search(r"\b(BLEU|nats|times)\b", s)]
    scores += re.findall(r"\*\*([+-]?\d[\d.]*)\*\*", text)
    assert numbers(" ".join(scores)) <= claimed
