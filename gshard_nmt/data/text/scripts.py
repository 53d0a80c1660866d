"""Scripts of characters and of languages: CYRILLIC for Russian, LATIN for English.

A script has the first word of the Unicode names of its letters. Japanese mixes its scripts with Chinese
characters, so kana count as CJK too.
"""

import functools
import unicodedata

_JAPANESE = ("HIRAGANA", "KATAKANA", "HALFWIDTH", "FULLWIDTH", "IDEOGRAPHIC", "BOPOMOFO")
_NO_SCRIPT = ("MICRO", "MODIFIER", "MASCULINE", "FEMININE", "CARON")
"""Letters such as MICRO SIGN belong to no script."""

_BY_SCRIPT = {
    "ARABIC": "ar arz arc bal bcc ckb fa ks lrc mzn pnb prs ps sd skr ug ur",
    "ARMENIAN": "hy hyw",
    "BENGALI": "as bn bpy mni",
    "CJK": "cjy gan hak ja lzh nan wuu yue zh",
    "CYRILLIC": "ab av ba be bg bua ce cv kbd koi kv ky mdf mhr mk mn mrj myv os ru sah tg tyv udm uk",
    "DEVANAGARI": "anp awa bh bho brx doi gom hi mai mr mag ne new sa",
    "ETHIOPIC": "am gez ti tig",
    "GEORGIAN": "ka xmf",
    "GREEK": "el grc pnt",
    "GUJARATI": "gu",
    "GURMUKHI": "pa",
    "HANGUL": "ko",
    "HEBREW": "he yi lad",
    "KANNADA": "kn tcy",
    "KHMER": "km",
    "LAO": "lo",
    "LATIN": (
        "af ak an ang ast ay az bar bi bm br bs ca cak ceb co crh cs csb cy da de dsb ee en eo es et eu "
        "fi fil fj fo fr frp fur fy ga gd gl gn gv ha haw hr hsb ht hu ia id ie ig ilo io is it jv kab "
        "kg kl ku kw la lb lfn lg li lij lmo ln lt ltg lv mg mi ms mt nah nap nb nds nl nn no nov nso ny "
        "nv oc om pap pl pms pt qu quz rm rn ro rom rw sc scn sco se sg sk sl sm sn so sq ss st su sv sw "
        "szl tet tk tl tlh tn to tpi tr ts tw ty uz vec vi vo wa war wo xh yo za zu"
    ),
    "MALAYALAM": "ml",
    "MYANMAR": "my shn",
    "ORIYA": "or",
    "SINHALA": "si",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAANA": "dv",
    "THAI": "th",
    "TIBETAN": "bo dz",
}
_ALSO = {
    # Languages that are written in more than one script.
    **dict.fromkeys(
        ("sr", "sh", "az", "uz", "tk", "kk", "tt", "crh", "mo", "cnr"), "CYRILLIC LATIN"
    ),
    "kk": "CYRILLIC LATIN ARABIC",
    "ky": "CYRILLIC ARABIC",
    "az": "CYRILLIC LATIN ARABIC",
    "ug": "ARABIC CYRILLIC LATIN",
    "ku": "LATIN ARABIC CYRILLIC",
    "ms": "LATIN ARABIC",
    "ha": "LATIN ARABIC",
    "pa": "GURMUKHI ARABIC",
    "ks": "ARABIC DEVANAGARI",
    "sd": "ARABIC DEVANAGARI",
    "gom": "DEVANAGARI LATIN KANNADA",
    "mni": "BENGALI MEETEI",
    "mn": "CYRILLIC MONGOLIAN",
    "ko": "HANGUL CJK",
    "lad": "HEBREW LATIN",
    "nan": "CJK LATIN",
    "hak": "CJK LATIN",
    "ber": "TIFINAGH LATIN ARABIC",
    "iu": "CANADIAN LATIN",
    "got": "GOTHIC",
}
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
_SCRIPTS = {
    language: script for script, text in _BY_SCRIPT.items() for language in text.split()
} | _ALSO


@functools.cache
def script_of(character: str) -> str:
    """Returns the script of a letter, such as "LATIN"; "" for a character that is no letter."""
    if not character.isalpha():
        return ""
    script = unicodedata.name(character, "").split(" ")[0].split("-")[0]
    return "CJK" if script in _JAPANESE else "" if script in _NO_SCRIPT else script


def scripts_of(text: str) -> set[str]:
    return {script_of(character) for character in set(text)} - {""}


@functools.cache
def scripts_of_language(tag: str) -> frozenset[str]:
    """Returns the scripts that a language is written in; nothing for a language that is not known.

    A script in the tag decides: sr-Latn gives LATIN.
    """
    language, *rest = tag.replace("_", "-").split("-")
    for part in rest:
        if part.title() in _ISO_15924:
            return frozenset([_ISO_15924[part.title()]])
    return frozenset(_SCRIPTS.get(language.lower(), "").split())
