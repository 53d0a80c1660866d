"""XLIFF 1.2 and 2: segments without a target get one, with the state that asks for a review."""

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lxml import etree

from gshard_nmt.decoding.documents.document import Document, Part, note_language
from gshard_nmt.decoding.documents.markup import Line, line_of, tagged

_KEPT = ("ph", "it", "bpt", "ept", "sub")
"""The inline elements whose content is not translated."""
_ENTITY = re.compile("&(?!(?:amp|lt|gt|quot|apos|#[^;]*);)[^;]+;")
"""An entity that the file or its DTD declares."""
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


def read(path: Path, target: str, everything: bool) -> Document:
    """Returns the segments of an XLIFF file; see `document.read`. Those with translate="no" stay."""
    try:
        with path.open("rb") as file:
            tree = etree.parse(file, etree.XMLParser(resolve_entities=False))
    except etree.XMLSyntaxError as error:
        raise ValueError(error) from None
    root = tree.getroot()
    if etree.QName(root).localname != "xliff":
        raise ValueError(f"it is no XLIFF, but {root.tag}")
    namespace, is_new = etree.QName(root).namespace, root.get("version", "").startswith("2")
    space = f"{{{namespace}}}" if namespace else ""
    for element in [root] if is_new else root.iter(f"{space}file"):
        name = "trgLang" if is_new else "target-language"
        note_language(path, element.get(name, ""), target)
        element.set(name, element.get(name) or target)
    parts = []
    for unit in root.iter(f"{space}segment" if is_new else f"{space}trans-unit"):
        source, old = unit.find(f"{space}source"), unit.find(f"{space}target")
        is_filled = old is not None and (len(old) or (old.text or "").strip())
        marks = [each.get("translate") for each in (unit, *unit.iterancestors())]
        stays = (is_filled and not everything) or next(filter(None, marks), "") == "no"
        if source is None or stays:
            continue
        whole = etree.tostring(source, encoding="unicode", with_tail=False)
        if entity := _ENTITY.search(whole):
            raise ValueError(f"a source has the entity {entity[0]}, so write its text in its place")
        inner = whole[whole.index(">") + 1 : whole.rindex("<")] if "</" in whole else ""
        if line := line_of(tagged(inner, _KEPT)):
            parts.append(_part(unit, whole[: whole.index(">") + 1], line, is_new, target))
    return Document(
        parts, lambda: etree.tostring(tree, encoding="UTF-8", xml_declaration=True) + b"\n"
    )


def _part(unit: Any, opening: str, line: Line, is_new: bool, language: str) -> Part:
    def fill(translations: Sequence[str]) -> bool:
        # A translation may have a character that XML does not have.
        content = line.restored(translations[0], html.escape) or "<"
        try:
            target = etree.fromstring(f"{opening}{content}</{re.split('[<> ]', opening)[1]}>")
        except etree.XMLSyntaxError:
            return False
        source, old = unit.find("{*}source"), unit.find("{*}target")
        target.tag, target.tail = re.sub("source$", "target", source.tag), source.tail
        if _XML_LANG in target.attrib:
            target.set(_XML_LANG, language)
        if old is None:
            before = unit.find("{*}seg-source")
            unit.insert(unit.index(source if before is None else before) + 1, target)
        else:
            target.attrib.update(old.attrib)
            target.tail = old.tail
            unit.replace(old, target)
        if is_new:
            unit.set("state", "translated")
        else:
            target.set("state", "needs-review-translation")
            unit.attrib.pop("approved", None)
        etree.cleanup_namespaces(target)
        return True

    return Part([line.text], fill)
