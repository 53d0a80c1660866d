"""Markdown: paragraphs, headings, items and cells of tables are translated. Code and HTML blocks stay."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

from gshard_nmt.decoding.documents.document import Document, Part, part_of
from gshard_nmt.decoding.documents.markup import TAG, Piece, has_letter, line_of

_FRONT_MATTER = re.compile(
    r"\A\ufeff?(?:---\r?\n.*?^(?:---|\.\.\.)\r?\n|\+\+\+\r?\n.*?^\+\+\+\r?\n)?",
    re.DOTALL | re.MULTILINE,
)
_INLINE = re.compile(
    rf"""(?P<atom>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|<[^<>\s]+[:@][^<>\s]*>|{TAG}
        |https?://(?:[^\s<>()\[\]]|\[[^\s<>()\[\]]*\])+
        |\[[^\[\]]*\](?:\[\])?(?![\[(]))  # code, links, labels of references
    |(?P<close>\](?:\((?:[^()\\]|\\.|\([^()]*\))*\)|\[[^\]]+\]))
    |(?P<open>!?\[)
    |(?P<escaped>\\[!-/:-@\[-`{{-~])
    |(?P<star>\*+|(?<!\w)_+|_+(?!\w)|~~)""",
    re.VERBOSE | re.DOTALL,
)
_MARKUP = re.compile(r"[\\`*\[\]<]|(?<![^\W_])_|_(?![^\W_])")
"""What could be markup in a translation."""
_BREAK = re.compile(
    r"((?: {2,}|\\)\n|\n:[^\S\n]+"
    r"|^[^\S\n]*(?:\$\$.*?\$\$|(?:\[!\w+\]|:::|!!!|\?\?\?)[^\n]*)(?:\n|\Z))",
    re.DOTALL | re.MULTILINE,
)
"""What stays between two sentences of a paragraph: hard breaks, formulas, marks of notes and terms."""
_BLOCK_START = re.compile(r"\A(\d*)([-+#>=.)]|~(?=~~))")
"""What another block could begin with."""


def read(path: Path, _target: str, _everything: bool) -> Document:
    """Returns the sentences of a page; front matter and the targets of links stay.

    The lines of a paragraph become one line, unless the break between them is a hard one.
    """
    text = re.sub(r"\r(?!\n)", "\n", path.read_bytes().decode())
    lines = text[_FRONT_MATTER.match(text).end() :].split("\n")  # type: ignore[union-attr]
    head = text[: len(text) - len("\n".join(lines))]
    found: list[tuple[int, int, int, str, list[str]]] = []
    parts, row, column = [], -1, 0
    tokens = MarkdownIt("commonmark").enable("table").parse("\n".join(lines))
    for opening, token in itertools.pairwise(tokens):
        if token.type != "inline" or not token.map or not has_letter(token.content):
            continue
        # The cells of a row are in one line. A bar in a cell has a backslash.
        is_cell, first = opening.tag in ("th", "td"), token.map[0]
        content = token.content.replace("|", "\\|") if is_cell else token.content
        text, line = content.split("\n")[0], lines[first]
        # Text of a line without cells is at its end; the mark before it may be equal, as in "2. 2".
        start = line.find(text, column if first == row else 0) if is_cell else line.rfind(text)
        if start < 0:
            continue  # it has characters that Markdown replaces, such as NUL
        last = first + content.count("\n")
        column = start + len(content) if last == first else len(lines[last].rstrip())
        row, sentences = first, _BREAK.split(content)
        found.append((first, start, column, content, sentences))
        for i in range(0, len(sentences), 2):
            parts += _sentence(sentences, i, is_cell)

    def saved() -> bytes:
        for first, start, end, content, sentences in reversed(found):
            last, new = first + content.count("\n"), "".join(sentences)
            if new != content:
                before = lines[first][:start]
                # Each line of a quote has its mark, and the lines of an item have its indentation.
                end_of_line = "\r\n" if lines[first].endswith("\r") else "\n"
                new = new.replace("\n", end_of_line + re.sub(r"[^>\s]", " ", before))
                lines[first : last + 1] = [before + new + lines[last][end:]]
        return (head + "\n".join(lines)).encode()

    return Document(parts, saved)


def _sentence(sentences: list[str], place: int, is_cell: bool) -> list[Part]:
    """Returns the part of sentences[place], if it has a letter."""

    def escape(text: str) -> str:
        text = _MARKUP.sub(r"\\\g<0>", text)
        return text.replace("|", "\\|") if is_cell else text

    def put(new: str) -> None:
        sentences[place] = _BLOCK_START.sub(r"\1\\\2", new)

    return part_of(line_of([*_pieces(sentences[place])], unpaired="text"), escape, put)


def _pieces(text: str) -> Iterator[Piece]:
    end = 0
    opened: list[str] = []
    for match in _INLINE.finditer(text):
        yield Piece("text", text[end : match.start()], text[end : match.start()])
        end, kind, source = match.end(), match.lastgroup or "", match.group()
        if kind == "escaped":
            yield Piece("text", source, source[1:])
        elif kind == "star":
            follows, ends = text[end : end + 1], [source] if source in opened else []
            if not ends and "".join(opened[:-3:-1]) == source and not follows.isalnum():
                ends = opened[:-3:-1]  # in *a **b***, the last run ends both
            if is_end := bool(ends) and not text[match.start() - 1].isspace():
                for last in ends:
                    opened.remove(last)
                    yield Piece("close", last, key=last)
            elif follows.strip():
                opened.append(source)
            if not is_end:
                yield Piece("open", source, key=source)
        else:
            is_box = kind == "atom" and not match.start() and source in ("[ ]", "[x]", "[X]")
            yield Piece("aside" if is_box else kind, source, key="link")
    yield Piece("text", text[end:], text[end:])
