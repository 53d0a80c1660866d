"""Writes docs/settings.md: every setting with its default, its range and its meaning.

    python scripts/settings_page.py

Everything comes from the classes of settings themselves: the comment above a group of fields, the
string after each field, its default and its rules.
"""

import ast
import dataclasses
import inspect
import pprint
import re
import textwrap
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt.settings.config import CLASSES
from gshard_nmt.settings.values import describe_type

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

HEAD = """# Settings

Every setting of a run, with its default, its other legal values in parentheses, and its meaning. A number
is whole if its default is, and at least 0 if nothing is said. A config sets them in gin:
`Model.experts = 8`. So does a flag: `--gin 'Model.experts = 8'`. This page is made from the code by
`python scripts/settings_page.py`; a test keeps it current."""


class Field(typing.NamedTuple):
    """A setting as its class declares it: the title of its group, and the text that explains it."""

    name: str
    group: str
    words: str


def fields_of(cls: type) -> list[Field]:
    """Returns the fields of a class of settings, with their explanations."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    (class_node,) = ast.parse(source).body
    assert isinstance(class_node, ast.ClassDef)
    settings = {field.name for field in dataclasses.fields(cls) if field.init}
    fields, group = [], ""
    for node, following in zip(class_node.body, [*class_node.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or ast.unparse(node.target) not in settings:
            continue
        name = ast.unparse(node.target)
        title = re.fullmatch(r"    # (.+)", lines[node.lineno - 2])
        group = title[1] if title else group
        match following:
            case ast.Expr(ast.Constant(value=str(words))):
                fields.append(Field(name, group, _markdown(words)))
            case _:
                raise ValueError(f"{cls.__name__}.{name} has no explanation after it")
        if not group:
            raise ValueError(f"{cls.__name__}.{name} has no group")
    return fields


def _markdown(words: str) -> str:
    paragraphs = inspect.cleandoc(words).split("\n\n")
    return "\n\n".join(
        text if text.startswith("    ") else " ".join(text.split()) for text in paragraphs
    )


def ranges_of(cls: type) -> dict[str, str]:
    hints = typing.get_type_hints(cls)
    # The explanation of a mapping says what it maps; its type would fill three lines.
    words = {
        field.name: "a dict {...}"
        if typing.get_origin(hints[field.name]) is Mapping
        else describe_type(hints[field.name])
        for field in dataclasses.fields(cls)
    }
    for rule in cls.RULES:  # type: ignore[attr-defined]
        for name in rule.fields:
            is_list = typing.get_origin(hints[name]) in (tuple, list, Sequence, typing.Sequence)
            is_number = hints[name] in (int, float) or is_list
            if is_list:
                words[name] = f"a list, each entry {rule.summary}"
            elif is_number:
                words[name] = f"{words[name]}, {rule.summary}"
            else:
                words[name] = rule.summary
    return words


def default_of(field: "dataclasses.Field[Any]") -> str:
    value = field.default
    if value is dataclasses.MISSING:
        assert field.default_factory is not dataclasses.MISSING
        value = field.default_factory()
    if isinstance(value, Mapping):
        value = dict(value)
    return pprint.pformat(value, width=10**6, sort_dicts=False)


def legal_of(text: str, words: str) -> str:
    """Returns the legal values of a field, without what its default or its words say already."""
    for kind in ("a whole number", "a number", "True or False", "a string in quotes"):
        text = text.removeprefix(kind).removeprefix(", ")
    values = re.findall(r'"(\w+)"', text) if text.startswith("one of") else []
    if values and all(f"'{value}'" in words or f'"{value}"' in words for value in values):
        return ""
    text = text.removeprefix("a list [...], ").removeprefix("a list, ")
    said = ("", "at least 0", "each entry a string in quotes", "a dict {...}")
    return "" if text in said else f" ({text})"


def row(name: str, default: str, legal: str, words: str) -> str:
    """Returns the item of a setting. Its pictures are indented below it."""
    first, *others = words.split("\n\n")
    item = f"- **`{name}`** = `{default}`{legal}: {first}"
    return "\n\n".join([item, *(textwrap.indent(text, "  ") for text in others)])


def page() -> str:
    parts = [HEAD]
    for name, cls in CLASSES.items():
        about = inspect.getdoc(cls) or ""
        parts.append(f"\n## {name}\n\n{about.strip()}")
        ranges = ranges_of(cls)
        declared = {field.name: field for field in dataclasses.fields(cls)}
        group = ""
        for field in fields_of(cls):
            if field.group != group:
                group = field.group
                parts.append(f"\n{group}:\n")
            default = default_of(declared[field.name])
            legal = legal_of(ranges[field.name], field.words)
            parts.append(row(f"{name}.{field.name}", default, legal, field.words))
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
