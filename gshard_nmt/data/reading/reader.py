"""Reads the rows of an input, whatever its format. All formats but tables are here.

A file of JSON lines has an object in each line, as Hugging Face's `datasets` writes translations:

    {"translation": {"fr": "un chat", "en": "a cat"}}
    {"fr": "un chat", "en": "a cat", "score": 1.07}
    {"source": "un chat", "target": "a cat"}

A translation memory (.tmx) has units in two or more languages:

    <tu><tuv xml:lang="fr"><seg>un chat</seg></tuv><tuv xml:lang="EN-US"><seg>a cat</seg></tuv></tu>
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from gshard_nmt.data.language_codes import names_language, nearest
from gshard_nmt.data.reading.rows import Input, SentencePair, make_pair, one_line, score_of
from gshard_nmt.data.reading.text_lines import blocks, line_blocks, lines
from gshard_nmt.data.reading.tsv import read_tsv
from gshard_nmt.errors import UserError

_ROWS = 256
_MARKUP = frozenset(("bpt", "ept", "ph", "it", "ut"))
"""Elements inside a segment that hold codes of a document's format and no text of the sentence."""
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


def read_blocks(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of an input in lists, some of which may be empty.

    Memory does not grow with the size of its files.
    """
    return _READERS[source.format](source)


def read_aligned(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of line-aligned files: line N of one file translates line N of the other."""
    rows = itertools.zip_longest(*map(lines, source.files))
    number = 0
    while block := list(itertools.islice(rows, _ROWS)):
        if None in block[-1]:
            raise _uneven(source)
        first, second, *others = zip(*block, strict=True)
        scores: Iterator[float | None] = itertools.repeat(None)
        if others:
            places = (f"{source.files[2]}, line {number + n}" for n in itertools.count(1))
            scores = map(score_of, others[0], places)
        yield list(map(make_pair, zip(first, second, scores, strict=False)))
        number += len(block)


def _uneven(source: Input) -> UserError:
    counts = [sum(1 for _ in lines(path)) for path in source.files]
    n = next(n for n, count in enumerate(counts) if count != counts[0])
    first, other = source.files[0], source.files[n]
    return UserError(
        f"the two files of {first.parent.name} have different lengths: {first} has {counts[0]} lines, "
        f"{other} has {counts[n]}. Line N of one file must translate line N of the other."
    )


def read_jsonl(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of a .jsonl file in blocks. Blank lines are skipped."""
    (path,) = source.files
    number = 0
    for block in line_blocks(path):
        rows = []
        for line in block:
            number += 1
            if line and not line.isspace():
                rows.append(_row(source, line, f"{path}, line {number}"))
        yield rows


def _row(source: Input, line: str, where: str) -> SentencePair:
    fields: Any = None
    try:
        fields = json.loads(line)
        texts = fields.get("translation", fields)
        first, second = (_text(texts[key], line) for key in _keys(source, texts))
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
        problem = f"has no text in {source.source} and {source.target}"
        if isinstance(error, json.JSONDecodeError | RecursionError):
            problem = f"is not JSON ({error})"
        raise UserError(
            f"{where} {problem}; each line must be an object such as "
            f'{{"translation": {{"{source.source}": "...", "{source.target}": "..."}}}}. Write the file '
            "again with these keys."
        ) from None
    return SentencePair(first, second, score_of(fields.get("score"), where))


def _keys(source: Input, texts: Mapping[str, Any]) -> list[str]:
    """Returns the keys of the source and of the target."""
    names = [nearest(tag, tuple(texts)) for tag in (source.source, source.target)]
    if names[0] and names[1] and names[0] != names[1]:
        return [names[0], names[1]]
    return ["target", "source"] if source.swapped else ["source", "target"]


def _text(text: str, line: str) -> str:
    if "\\u" in line:
        # An escape may be half of a pair of UTF-16, for instance if a program has cut an emoji. No file
        # can hold it, so U+FFFD takes its place.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return one_line("" + text)  # a TypeError if it is a list


def read_tmx(source: Input) -> Iterator[list[SentencePair]]:
    """Yields the rows of a translation memory, version 1.1 to 1.4: the units that have both languages.

    The language `en` also takes a text in `EN-US` if the unit has no text in `en`. A property of type
    `score` gives the score.
    """
    (path,) = source.files
    parser: Any = ElementTree.XMLPullParser(["start", "end"])
    languages: set[str] = set()
    parents: list[ElementTree.Element] = []
    count = 0
    try:
        for block in itertools.chain(blocks(path), [b""]):
            # Expat from 2.6 on keeps the last token back until the end.
            parser.feed(block) if block else parser.close()
            rows = []
            for event, element in parser.read_events():
                if event == "start":
                    element.tag = element.tag.rpartition("}")[2]  # without its namespace
                    parents.append(element)
                    continue
                parents.pop()
                if element.tag == "tu":
                    texts = _texts(element)
                    languages |= texts.keys()
                    first, second = (_in(tag, texts) for tag in (source.source, source.target))
                    if first is not None and second is not None:
                        score = score_of(element.findtext("prop[@type='score']"), str(path))
                        rows.append(SentencePair(first, second, score))
                    if parents:
                        parents[-1].clear()  # all units before are done
            yield rows
            count += len(rows)
    except (ElementTree.ParseError, LookupError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} is not well-formed XML in the encoding that its first line names ({error}). Mend "
            "the line, or export the memory again in UTF-8."
        ) from None
    if not count:
        listing = ", ".join(sorted(languages)) or "no language"
        raise UserError(
            f"{path} has no unit with text in both {source.source} and {source.target}; it has "
            f"{listing}. Rename its folder after two of these languages."
        )


def _texts(unit: ElementTree.Element) -> Mapping[str, str]:
    """Returns the text of a unit in each language."""
    texts: dict[str, str] = {}
    for variant in unit.iter("tuv"):
        if (segment := variant.find("seg")) is not None:
            language = variant.get(_LANGUAGE, variant.get("lang", ""))
            texts.setdefault(language, one_line("".join(_parts(segment))))
    return texts


def _parts(element: ElementTree.Element) -> Iterator[str]:
    if element.tag not in _MARKUP:
        yield element.text or ""
        for child in element:
            yield from _parts(child)
            yield child.tail or ""


def _in(tag: str, texts: Mapping[str, str]) -> str | None:
    exact = [text for code, text in texts.items() if names_language(code, tag)]
    regional = [t for code, t in texts.items() if names_language(code, tag, regions=True)]
    return next(iter(exact + regional), None)


_READERS = {"aligned": read_aligned, "tsv": read_tsv, "jsonl": read_jsonl, "tmx": read_tmx}
