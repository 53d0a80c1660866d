"""Placeholders in text, and normal forms in which variants of a sentence are equal.

"Copy %d files to <folder>" has the placeholders `%d` and `<folder>`. Its variants are, for example,
"Copy %s file to <folder>." and "COPY {count} files to <name>".

Spellings of the same text have equal forms: composed and decomposed accents (NFC and NFD), full-width and
half-width letters, ligatures, all kinds of spaces, quotes and dashes, and characters that nobody sees,
such as soft hyphens, joiners and marks of direction. A letter with an accent differs from one without.
"""

import functools
import re
import unicodedata

TAG = re.compile(r"</?[A-Za-z][^<>]{0,80}>|<!--.{0,1000}?-->")
_TAG_NAME = re.compile(r"[A-Za-z][\w:-]*")
_FORMATTING = re.compile(
    "[abiuspq]|br|hr|em|tt|[uod]l|li|d[dt]|t[dhr]|del|ins|img|div|su[bp]|pre|big|body|head|html|font|span"
    "|small|table|tbody|thead|center|strong|strike|blockquote|h[1-6]"
)
"""Names of tags that format text. A tag of another name is a placeholder unless it is closed."""

PLACEHOLDER = re.compile(
    # Each alternative begins with one certain character, so that the search skips all others fast.
    r"""
    (%(?:\(\w+\)|\d+\$)?[-+\#0']*+(?:\d++|\*)?(?:\.(?:\d++|\*))?(?:hh|h|ll|l|L|q|j|z|t)?[diouxXeEfFgGcsp]
    (?![A-Za-z])                                  # printf: %s, %-5.2f, %(name)s, %1$d; not 50%discount
    | %\d+                                        # Qt: %1
    | \{\{?\s*+[\w.:!\[\]<>+,-]*+\s*+\}?\}            # {}, {name}, {0:>8}, {{ name }}
    | \$\{\{?\s*+[\w.:!\[\]<>+,-]*+\s*+\}?\}          # ${name}
    | \$[A-Za-z_]\w*                              # $name
    | <[A-Za-z][\w .:-]{0,40}>                    # <name>
    )
    """,
    re.VERBOSE,
)
ADDRESS = re.compile(
    r"(?:https?|ftp)://[^\s<>\"')\]]+|\bwww\.[^\s<>\"')\]]+|(?<![\w.+-])[\w.+-]{1,64}@[\w-]+\.[\w.]+\w"
)
_NOT_LETTERS = re.compile(r"[\W_\d]+")
_DIGITS = re.compile(r"\d+")
_LONE_ACCENTS = re.compile("[\xa8\xaf\xb4\xb8\u02d8-\u02dd\u0384\u0385\u203e\uffe3]")
_WORDS = re.compile(
    # Languages without spaces between words: each character counts as a word.
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\d_]+"
)
_SAME_WORD = {
    **dict.fromkeys(("is", "are", "was", "were", "be"), "be"),
    **dict.fromkeys(("has", "have"), "have"),
    **dict.fromkeys(("do", "does"), "do"),
    **dict.fromkeys(("this", "these", "that", "those"), "this"),
    **dict.fromkeys(("it", "they", "them", "its", "their"), "it"),
    **dict.fromkeys(("person", "people"), "person"),
    **dict.fromkeys(("child", "children"), "child"),
    # "One file" and "a file" are singular forms of "%d files".
    **dict.fromkeys(("a", "an", "one", "the"), ""),
}


def without_markup(text: str) -> str:
    """Replaces the tags that format text by spaces, and keeps placeholders such as `<name>`.

    A tag is markup if it is a comment, is closed (`<x>...</x>`, `<x/>`), has attributes, or has the name
    of a tag that formats text, such as `<br>`.
    """
    if "<" not in text:
        return text
    closed = {_tag_name(tag) for tag in TAG.findall(text) if tag.startswith("</")}

    def replacement(match: re.Match[str]) -> str:
        tag = match[0]
        is_markup = (
            tag.startswith(("</", "<!--"))
            or tag.endswith("/>")
            or "=" in tag
            or _tag_name(tag) in closed
            or _FORMATTING.fullmatch(_tag_name(tag))
        )
        return " " if is_markup else tag

    return TAG.sub(replacement, text)


def _tag_name(tag: str) -> str:
    match = _TAG_NAME.search(tag)
    return match[0].casefold() if match else ""


def placeholders(text: str) -> list[str]:
    """Returns the placeholders of a text, in their order; those inside an address do not count."""
    text = ADDRESS.sub(" ", text) if may_have_address(text) else text
    return PLACEHOLDER.findall(without_markup(text))


def may_have_address(text: str) -> bool:
    """Returns False only if a text has no web or mail address. It is much faster than `ADDRESS`."""
    return "@" in text or "://" in text or "www." in text


def without_placeholders(text: str) -> str:
    return PLACEHOLDER.sub(" ", text) if _has_mark(text) else text


def _has_mark(text: str) -> bool:
    # This runs for each line of a corpus, and four tests are faster than a loop.
    return "%" in text or "<" in text or "{" in text or "$" in text


def folded(text: str) -> str:
    """Returns a text without placeholders, in lower case and with one spelling of each letter (NFKC)."""
    if text.isascii():
        return without_placeholders(text).casefold()
    text = without_placeholders(unicodedata.normalize("NFKC", text)).casefold()
    # Lower case may take a letter apart, as it does with U+0390.
    return unicodedata.normalize("NFKC", text).casefold()


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, without placeholders, digits and punctuation.

    In languages without spaces between words, such as Chinese and Thai, each character is a word.
    """
    return _WORDS.findall(_marks().sub("", folded(text)))


def sentence_form(text: str) -> str:
    """Returns the letters of a text in lower case, without placeholders; "" if it has no letters.

    Texts that differ in case, spaces, digits, punctuation or placeholders have equal forms.
    """
    return _NOT_LETTERS.sub("", folded(text))


def near_form(text: str, form: str | None = None) -> str:
    """Returns a text without case, spaces and punctuation.

    Unlike `sentence_form` it keeps digits, placeholders and combining marks, which change the meaning. A
    text without letters stays as it is. `form` is the `sentence_form` of the text, if it is known.
    """
    form = sentence_form(text) if form is None else form
    # An accent that stands alone, such as a wrong apostrophe, is punctuation. NFKC makes it a mark.
    text = unicodedata.normalize("NFKC", _LONE_ACCENTS.sub(" ", text))
    if not form:
        return text
    # The parts between placeholders, and the placeholders, in turns.
    parts = PLACEHOLDER.split(text) if _has_mark(text) else [text]
    rest = " ".join(parts[::2])
    others = [*parts[1::2], *_DIGITS.findall(rest)]
    if not rest.isascii():
        others += _marks().findall(rest)
    return "\0".join([form, *others]) if others else form


@functools.cache
def _marks() -> re.Pattern[str]:
    """Returns a pattern of combining marks of letters, such as the vowel signs of Hindi."""
    marks = {p for p in range(0x300, 0x1F000) if unicodedata.category(chr(p))[0] == "M"}
    # Ranges are many times as fast as single characters.
    starts = sorted(point for point in marks if point - 1 not in marks)
    ends = sorted(point for point in marks if point + 1 not in marks)
    ranges = "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))
    return re.compile(f"[{ranges}]+")


def message_form(english: str) -> str:
    """Returns a form that all variants of an English message share; never "" for a text with letters.

    It is like `sentence_form`. Besides, plural endings, articles, and the forms of a few words (is and
    are) are equal. It decides the split of a message, so messages that differ may share a form, but
    variants of one message must.
    """
    form = "".join(map(_folded, _WORDS.findall(without_placeholders(english).casefold())))
    return form or sentence_form(english) or english.casefold()


def _folded(word: str) -> str:
    """Returns a word without its plural ending: entries and entry both give entri."""
    if word in _SAME_WORD:
        return _SAME_WORD[word]
    if word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    word = word.removesuffix("e")
    return word[:-1] + "i" if word.endswith("y") else word
