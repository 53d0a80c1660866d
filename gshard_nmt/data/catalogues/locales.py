"""Turns the POSIX locale names of message catalogues into BCP 47 language tags."""

import re

_LOCALE = re.compile(
    r"(?P<language>[a-z]{2,3})(?:[_-](?P<script>[A-Z][a-z]{3}))?"
    r"(?:[_-](?P<region>[A-Z]{2}|[0-9]{3}))?(?:\.[\w-]+)?(?:@(?P<modifier>[\w=]+))?"
)
_SAME_LANGUAGE = {
    "no": "nb",
    "iw": "he",
    "in": "id",
    "ji": "yi",
    "mo": "ro",
    "tl": "fil",
    "sh": "sr",
}
_MODIFIERS = {
    "latin": "Latn",
    "Latn": "Latn",
    "cyrillic": "Cyrl",
    "arabic": "Arab",
    "devanagari": "Deva",
    "valencia": "valencia",
    "tarask": "tarask",
    "ijekavian": "ijekavsk",
    "ijekavianlatin": "Latn-ijekavsk",
    "euro": "",
    "ije": "ijekavsk",
}
# The main region of each language, which the tag leaves out: de_DE and de are one language, but pt_BR
# and pt are two.
_MAIN_REGION = {
    **{
        x: x.upper()
        for x in [
            "de",
            "fr",
            "it",
            "es",
            "nl",
            "pl",
            "ru",
            "fi",
            "hu",
            "ro",
            "bg",
            "hr",
            "is",
            "lt",
            "lv",
            "mk",
            "mt",
            "no",
            "pt",
            "ro",
            "sk",
            "th",
            "tr",
        ]
    },
    **dict(
        pair.split(":")
        for pair in [
            "sv:SE",
            "da:DK",
            "cs:CZ",
            "el:GR",
            "ja:JP",
            "ko:KR",
            "uk:UA",
            "he:IL",
            "fa:IR",
            "hi:IN",
            "bn:BD",
            "ca:ES",
            "eu:ES",
            "gl:ES",
            "et:EE",
            "sl:SI",
            "sq:AL",
            "sr:RS",
            "bs:BA",
            "ka:GE",
            "hy:AM",
            "kk:KZ",
            "vi:VN",
            "id:ID",
            "ms:MY",
            "ta:IN",
            "te:IN",
            "ml:IN",
            "kn:IN",
            "gu:IN",
            "mr:IN",
            "pa:IN",
            "or:IN",
            "as:IN",
            "ne:NP",
            "si:LK",
            "km:KH",
            "lo:LA",
            "my:MM",
            "mn:MN",
            "az:AZ",
            "be:BY",
            "ga:IE",
            "cy:GB",
            "br:FR",
            "oc:FR",
            "af:ZA",
            "zu:ZA",
            "xh:ZA",
            "nb:NO",
            "nn:NO",
            "se:NO",
            "ar:EG",
            "ur:PK",
            "am:ET",
            "sw:KE",
            "uz:UZ",
            "ky:KG",
            "tg:TJ",
            "tk:TM",
            "tt:RU",
            "ug:CN",
            "fil:PH",
            "ia:FR",
            "fy:NL",
            "li:NL",
            "wa:BE",
            "lb:LU",
            "fo:FO",
        ]
    ),
}
# Chinese needs a region. A locale that names only a script gets the region that has most readers of
# this script.
_CHINESE = {"Hans": "CN", "Hant": "TW"}


def bcp47(locale: str) -> str | None:
    """Returns the language tag of a locale name; None if the name is not a locale.

    pt_BR -> pt-BR, sr@latin -> sr-Latn, de_DE.UTF-8 -> de, zh_Hant -> zh-TW, iw -> he.
    """
    match = _LOCALE.fullmatch(locale)
    if not match:
        return None
    language, script, region = match["language"], match["script"], match["region"]
    language = _SAME_LANGUAGE.get(language, language)
    modifier = _MODIFIERS.get(match["modifier"] or "", match["modifier"])
    if modifier and modifier not in _MODIFIERS.values():
        return None
    if language == "zh":
        region = region or _CHINESE.get(script or "", "CN")
        return f"zh-{region}"
    if region == _MAIN_REGION.get(language):
        region = None
    return "-".join(part for part in (language, script, region, modifier) if part)


def is_english(tag: str) -> bool:
    """Returns whether a tag is English or a variant of it, such as en-GB."""
    return tag == "en" or tag.startswith("en-")
