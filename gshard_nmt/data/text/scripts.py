"""Scripts of characters and of languages: CYRILLIC for Russian, LATIN for English.

A script has the first word of the Unicode names of its letters. Japanese mixes its scripts with Chinese
characters, so kana count as CJK too.
"""

import functools
import unicodedata

_JAPANESE = ("HIRAGANA", "KATAKANA", "HALFWIDTH", "FULLWIDTH", "IDEOGRAPHIC", "BOPOMOFO")
_NO_SCRIPT = ("MICRO", "MODIFIER", "MASCULINE", "FEMININE", "CARON")
"""Letters such as MICRO SIGN belong to no script."""

_SEVERAL = {
    "CYRILLIC LATIN": "sr sh uz tk tt crh mo cnr", "CYRILLIC LATIN ARABIC": "az kk ku ug",
    "CYRILLIC ARABIC": "ky", "CYRILLIC MONGOLIAN": "mn", "LATIN ARABIC": "ms ha",
    "GURMUKHI ARABIC": "pa", "DEVANAGARI ARABIC": "ks sd", "DEVANAGARI LATIN KANNADA": "gom",
    "BENGALI MEETEI": "mni", "HANGUL CJK": "ko", "HEBREW LATIN": "lad", "CJK LATIN": "nan hak",
    "TIFINAGH LATIN ARABIC": "ber", "CANADIAN LATIN": "iu",
}  # fmt: skip
"""Languages that are written in more than one script."""
_CODES = """
Arab ARABIC      Armn ARMENIAN    Beng BENGALI    Cans CANADIAN    Cyrl CYRILLIC    Deva DEVANAGARI
Ethi ETHIOPIC    Geor GEORGIAN    Grek GREEK      Gujr GUJARATI    Guru GURMUKHI    Hang HANGUL
Hani CJK         Hans CJK         Hant CJK        Hebr HEBREW      Jpan CJK         Khmr KHMER
Knda KANNADA     Kore HANGUL      Laoo LAO        Latn LATIN       Mlym MALAYALAM   Mong MONGOLIAN
Mymr MYANMAR     Orya ORIYA       Sinh SINHALA    Taml TAMIL       Telu TELUGU      Tfng TIFINAGH
Thaa THAANA      Thai THAI        Tibt TIBETAN
"""
"""The codes of ISO 15924, each before its script."""
_ISO_15924 = dict(zip(_CODES.split()[::2], _CODES.split()[1::2], strict=True))


@functools.cache
def script_of(character: str) -> str:
    """Returns the script of a letter, such as "LATIN"; "" for a character that is no letter."""
    if not character.isalpha():
        return ""
    script = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    return "CJK" if script in _JAPANESE else "" if script in _NO_SCRIPT else script


@functools.cache
def scripts_of_language(tag: str) -> frozenset[str]:
    """Returns the scripts that a language is written in; nothing if they are not known.

    A script in the tag decides: sr-Latn gives LATIN. Otherwise it is the usual script of CLDR.
    """
    from babel.core import get_global  # slow, and not every program needs it

    language, *rest = tag.replace("_", "-").split("-")
    language = language.lower()
    scripts = next((s for s, languages in _SEVERAL.items() if language in languages.split()), "")
    if not scripts:
        usual = get_global("likely_subtags").get(language, "__").split("_")[1]
        scripts = _ISO_15924.get(usual, "")
    named = [_ISO_15924.get(p.title(), "") for p in rest if len(p) == 4 and p.isalpha()]
    return frozenset((named[0] if named else scripts).split())
