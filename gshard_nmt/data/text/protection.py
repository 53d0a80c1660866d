"""Text that must not change in a translation, and a symbol that stands for it in the ids of a model.

The source "Copy %d files to /tmp" has the spans `%d` and `/tmp`. The model reads the reserved symbol
`<ph>` in place of each of them and writes it too, and the values are put back after the search:

    Copy %d files             ▁Copy ▁ <ph> ▁files
    Copy %d files to /tmp     ▁Copy ▁ <ph> <0x31> ▁files ▁to ▁ <ph> <0x32>

There is only one symbol. If a source has several values, the number of its value follows each symbol: a
digit, written as a byte, which no digit of the text looks like. SentencePiece sees a character in place
of a value, so spaces are as in any text, and values may touch other text, as in "%s" and (%d) and %s: do.
"""

import functools
import itertools
import re
from collections.abc import Sequence

from gshard_nmt.data.text.normal_form import PLACEHOLDER
from gshard_nmt.data.text.vocabulary import PLACEHOLDER as SYMBOL
from gshard_nmt.data.text.vocabulary import Vocabulary

MOST = 9
"""The most values in a line. Further ones stay text."""

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_HEX4 = "[0-9A-Fa-f]{1,4}"
_EXTENSIONS = (
    "txt|pdf|html?|xml|json|ya?ml|csv|tsv|py|js|ts|css|c|h|cpp|rs|java|sh|bat|conf|cfg|ini|log|zip|tar|gz"
    "|bz2|xz|7z|png|jpe?g|gif|svg|webp|mp[34]|ogg|wav|avi|mkv|docx?|xlsx?|pptx?|od[tsp]|exe|dll|deb|rpm"
    "|iso|md|po|sql|db|bak|tmp"
)
_EMOJI = (
    "[\U0001f000-\U0001faff\u231a-\u23ff\u25a0-\u27bf\u2b05-\u2b55"
    "\xa3\xa5\xb0\u20a0-\u20bf\u2190-\u22ff]"  # money, arrows, relations
)
_JOINED = "[\ufe0e\ufe0f\u200d\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"

_LETTER = "0-9A-Za-z_\xc0-\u0dff\u0f00-\u0fff\u10a0-\u177f\u1800-\u2000"
"""What goes on with a word, for a character class. Chinese, Japanese and Thai have no spaces, so a value
may touch their letters. Inside a value, a letter is one of ASCII."""
_END = f"(?![{_LETTER}])"

# Quantifiers are possessive or have a limit: a line may be long, and anybody may send it to a server.
_KINDS = (
    # Markup, and what other programs put in.
    r"<%.{0,200}?%>|%[A-Z][A-Z_]+%",
    # A tag has a name alone, or also values. <unknown code %d> is text.
    r"<!--.{0,1000}?-->|</?[A-Za-z][^\s<>]{0,80}(?:\s(?=[^<>=]{0,400}+=)[^<>]{0,800}+|\s{0,9}/?)>",
    r"&(?:[A-Za-z]{2,8}|#\d{1,6}|#x[0-9A-Fa-f]{1,6});",
    r"(?i:(?:https?|ftp)://|www\.)[^\s<>\"')\]\u2018-\u201f\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef]+"
    r"(?<![.,;:!?])",
    rf"(?<![{_LETTER}.+-])(?a:[\w.+-]{{1,64}}@[\w-]++\.[\w.]+\w)",
    r"\{\{[^{}]{0,100}\}\}|\{%[^{}]{0,100}%\}",  # {{ name | upper }}
    r"\{\s{0,9}\w{1,60}\s{0,9},\s{0,9}\w{1,60}\s{0,9}(?:,(?:[^{}]|\{(?:[^{}]|\{[^{}]{0,99}\}){0,300}\}){0,600})?\}",
    r"[%#]\{\w{1,60}\}|%<\w{1,60}>\w?|%(?:\d{1,3}\$)?@|%%|\$\([\w -]{1,60}\)|\$\{[^{}\s]{1,60}\}",
    r"(?a:\$[A-Za-z_]\w*)",
    r"%[1-9](?![.,]?\d|[$'\u2019A-Za-z])",  # Qt. %20 may be twenty percent.
    rf"(?x:(?!<)(?!%\d++(?![\d$.]*[A-Za-z])){PLACEHOLDER.pattern})",
    r"(?<!\d)%[-_0^#EO]?[A-Za-z](?![A-Za-z])",  # parts of dates, %Y-%m-%d
    r"(?<!\w)`[^`'\n]{1,100}`(?!\w)",  # not the quotes of `this'
    # Addresses of machines, and numbers of versions. 1.000.000 and 12.05.2024 are plain numbers.
    rf"(?<![{_LETTER}.]){_OCTET}(?:\.{_OCTET}){{3}}(?::\d{{1,5}}|/\d{{1,2}})?(?!\.?\w)",
    rf"(?<![{_LETTER}:])(?:{_HEX4}(?::{_HEX4}){{0,6}})?::(?:{_HEX4}(?::{_HEX4}){{0,6}})?(?:/\d{{1,3}})?(?!:?\w)",
    rf"(?<![{_LETTER}:]){_HEX4}(?::{_HEX4}){{5,7}}(?!:?\w)",
    rf"(?<![{_LETTER}.])v\d++(?:\.\d++)*(?:-(?a:\w)+)?(?!\.?\w)",
    rf"(?<![{_LETTER}.,])(?!\d{{1,3}}(?:\.\d{{3}})+\b|\d\d?\.\d\d?\.\d{{4}}\b)\d++(?:\.\d++){{2,}}(?:-(?a:\w)+)?(?!\.?\w)",
    rf"(?<![{_LETTER}])0[xX][0-9A-Fa-f]++{_END}|(?<!\w)#(?:[0-9A-Fa-f]{{6}}|[0-9A-Fa-f]{{8}})\b",
    r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b",
    # Files, options and identifiers.
    rf"(?<![{_LETTER}/~.\\])(?a:(?:[A-Za-z]:\\|\\\\)[\w.\\$-]*\w)",
    rf"(?<![{_LETTER}/.>@+-])(?:~|\.\.?)?/(?a:(?:[\w.@+-]++/)+(?:\.?[A-Za-z0-9_][\w.@+-]*)?|\.?[A-Za-z0-9_][\w.@+-]{{2,}})"
    rf"(?<![.-])/?{_END}",
    rf"(?<![{_LETTER}/.-])(?a:(?:[\w-]++/)*[\w-]{{2,}}(?:\.[\w-]+)*\.(?:{_EXTENSIONS})){_END}(?!\.\w)",
    rf"(?<![{_LETTER}.@-])(?a:(?:[\w-]++\.)+(?:com|org|net|edu|gov|io)){_END}(?a:/[\w./?=&%-]*\w)?",
    rf"(?<![{_LETTER}-])--(?a:[A-Za-z][\w-]*+){_END}",
    rf"(?<![{_LETTER}])(?a:[A-Za-z_]\w*+\(\)|[a-z][a-z0-9]*+_\w++(?:\(\))?|[A-Z0-9]++_[A-Z0-9_]++){_END}",
    rf"[#*0-9]\ufe0f?\u20e3|{_EMOJI}(?:{_JOINED}|{_EMOJI})*",
)
_MAY_HAVE = re.compile(rf"[`%<{{$&@/\\\\#~_\d]|--|[.:]\w|\(\)|::|\u20e3|{_EMOJI}")
"""Text without any of these has no span. It is many times as fast to find as all kinds."""
_NUMBER = (
    r"\d++(?:[.,:/'\u00a0\u2009\u202f-]\d++)*"
    r"(?:[ \xa0\u202f]?(?:[%\u2030\u20ac$\xa3\xa5]|\xb0[CF]?|[kKMGT]i?B|[kMG]?Hz|[kcm]?m|[km]?g|[cm]?l"
    r"|ms|min|[sh])(?![A-Za-z'\u2019]))?"
)
"""A number, and its unit if it has one."""
_PLAIN = r"""(?P<plain>\s++|(?<![^\W\d_])[^\W\d_]++(?=[\s,;!?)"'»”]|\.?$|\.\s))"""
"""Spaces and words of letters, which are skipped fast: no kind is tried at each of their characters."""
_SPAN = re.compile("|".join((_PLAIN, *_KINDS)))
_SPAN_OR_NUMBER = re.compile("|".join((_PLAIN, *_KINDS, _NUMBER)))

INVENTED = re.compile(
    r"%(?:\(\w+\)|\d+\$)?[-+#0]*+\d*+(?:\.\d++)?(?:hh|h|ll|l|q|j|z|t)?[diouxXeEfFgGcsp](?![A-Za-z])"
    r"|\$?\{\w{0,60}\}|</?[A-Za-z]\w{0,20}/?>"
)
"""Placeholders and tags that only a program can mean, unlike some that `spans` finds."""

_MARK = "\U0010fffd"
"""A private character that stands for a value in SentencePiece. No text has it."""
_MARK_BYTES = _MARK.encode()


def spans(text: str, numbers: bool = False) -> list[tuple[int, int]]:
    """Returns the places (start, end) of what must not change in a text, in their order.

    This is placeholders of all kinds, tags, addresses, versions, files, code and emoji. With `numbers`,
    it is also numbers with their units.
    """
    if not _MAY_HAVE.search(text):
        return []
    pattern = _SPAN_OR_NUMBER if numbers else _SPAN
    return [match.span() for match in pattern.finditer(text) if match.lastgroup != "plain"]


def take_out(
    text: str, spans: Sequence[tuple[int, int]], most: int = MOST
) -> tuple[list[str], list[str]]:
    """Returns the n + 1 texts around the first `most` spans, and the n values in the spans."""
    places = [0, *(place for span in spans[:most] for place in span), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(places)]
    return parts[::2], parts[1::2]


def symbol(vocabulary: Vocabulary) -> int | None:
    """Returns the id of `<ph>`; None if the vocabulary has none, so no text can be protected."""
    return _symbols(vocabulary)[0]


def encode(
    vocabulary: Vocabulary, texts: Sequence[str], numbers: Sequence[int], count: int
) -> list[int]:
    """Returns the ids of n + 1 texts with the symbol of a value after each but the last; no EOS, no tags.

    `numbers` has the number of each value, 1 is the first one in the source. `count` is the number of
    values in the source; if it is 1, no digits are written.
    """
    placeholder, mark, digits = _symbols(vocabulary)
    (ids,) = vocabulary.encode([_MARK.join(text.replace(_MARK, "") for text in texts)])
    if not numbers:
        return ids
    assert placeholder is not None
    result: list[int] = []
    values = iter(numbers)
    place = 0
    while place < len(ids):
        if ids[place : place + len(mark)] == mark:
            result.append(placeholder)
            number = next(values)
            result += [digits[number]] if count > 1 else []
            place += len(mark)
        else:
            result.append(ids[place])
            place += 1
    return result


def decode(vocabulary: Vocabulary, ids: Sequence[int], count: int) -> tuple[list[str], list[int]]:
    """Returns the n + 1 texts around the symbols of ids, and the n numbers of their values.

    `count` is the number of values in the source. A number is 0 if a digit should follow the symbol and
    none does. It may be larger than `count`, if a model wrote it.
    """
    placeholder, mark, digits = _symbols(vocabulary)
    numbers: list[int] = []
    plain: list[int] = []
    awaits_digit = False
    for token in map(int, ids):
        if awaits_digit and token in digits:
            numbers[-1] = digits.index(token)
        elif token == placeholder:
            numbers.append(int(count == 1))
            plain += mark
        else:
            plain.append(token)
        awaits_digit = token == placeholder and count > 1
    (text,) = vocabulary.decode([plain])
    return text.split(_MARK), numbers


def put_back(texts: Sequence[str], values: Sequence[str]) -> str:
    """Returns n + 1 texts with n values between them."""
    return "".join(part for pair in zip(texts, [*values, ""], strict=True) for part in pair)


@functools.lru_cache(maxsize=8)
def _symbols(vocabulary: Vocabulary) -> tuple[int | None, list[int], list[int]]:
    """Returns the id of `<ph>`, if it can be used, and the ids of the bytes of `_MARK` and of 0 to 9."""
    values = vocabulary.byte_values.tolist()
    if any(byte not in values for byte in _MARK_BYTES + b"0123456789"):
        return None, [], []
    mark, digits = ([values.index(byte) for byte in b] for b in (_MARK_BYTES, b"0123456789"))
    return vocabulary.tag(SYMBOL), mark, digits
