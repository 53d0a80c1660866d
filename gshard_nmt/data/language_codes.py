"""The names of languages: BCP 47 tags, and the other codes that mean the same languages.

Corpora, test sets, message catalogues and users write `zh`, `zh_CN`, `zho_Hans`, `cmn` or `chi`. The
tables of codes, likely scripts and likely regions are those of Unicode's CLDR, which Babel contains.
"""

import functools
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from babel.core import Locale

_ALIASES = {
    "pbt": "ps", "quy": "qu", "cz": "cs", "jp": "ja", "ajp": "ajp", "gom": "gom", "tw": "tw", "twi": "tw",
}  # fmt: skip
"""Codes that CLDR lacks, and languages that have text of their own in FLORES although CLDR joins them."""

_OLD = {"zho_simpl": "zho_Hans", "zho_trad": "zho_Hant"}
"""Codes of FLORES-101."""
_SCRIPTS = {"Hang": "Kore"}
"""The script of Korean in FLORES."""
_VARIANTS = {"vale1252": "valencia", "aran1260": "aranes"}
"""Glottocodes of FLORES+ and the variants of the IANA registry."""

_MODIFIERS = {
    "latin": "Latn", "cyrillic": "Cyrl", "arabic": "Arab", "devanagari": "Deva", "euro": "",
    "ijekavian": "ijekavsk", "ije": "ijekavsk", "ijekavianlatin": "Latn-ijekavsk",
}  # fmt: skip
"""What follows the @ in the name of a POSIX locale, unless it is a script or variant itself."""

_CHINESE = {"Hans": "CN", "Hant": "TW"}

_CODE = re.compile(
    r"([a-z]{2,3})(?:[_-]([a-z]{4}))?(?:[_-]([a-z]{2}|[0-9]{3}))?"
    r"(?:[_-]([a-z0-9]{5,8}|[0-9][a-z0-9]{3}))?",
    re.IGNORECASE,
)
_LOCALE = re.compile(r"([\w-]+?)(?:\.[\w-]+)?(?:@(\w+))?")

EXACT = re.compile(
    r"[a-z]{2,3}([_-][A-Z][a-z]{3})?([_-]([A-Z]{2}|[0-9]{3}))?([_-][a-z0-9]{5,8}|[_-][0-9][a-z0-9]{3})?"
)
"""A code with the capital letters that BCP 47 recommends."""


class Language(NamedTuple):
    """The BCP 47 tag of a code, and whether CLDR has its language and its variant."""

    tag: str
    is_known: bool = True


def understand(code: str) -> Language | None:
    """Returns the language of a code, such as fra, fra_Latn, fra-CA or fr; None if it is no code.

    zho_Hans becomes zh, zho_Hant zh-Hant, srp_Cyrl sr, srp_Latn sr-Latn, and por-BR pt-BR.
    """
    parts = _parts(code)
    if parts is None:
        return None
    language, script, region, variant = parts
    if language == "zh" and not script and region in _CHINESE.values():
        script, region = _likely(language, "", region)[0], ""
    tag = _joined(language, _unusual(language, script), region, variant)
    return Language(tag, _is_known(language) and _is_variant(variant))


def folder_tag(code: str) -> str | None:
    """Returns the BCP 47 tag of a code in the name of a folder: fra_Latn and fr_FR become fr.

    Only Chinese keeps its usual region, so the folders of zh-CN and zh-TW keep their names. None if the
    text does not look like a code, its two letters are no code of ISO 639, or its region or variant is
    unknown (`fr-EN`, `en-small`).
    """
    parts = _parts(code) if code[:2].islower() else None
    if parts is None or not _is_variant(parts[3]):
        return None
    language, script, region, variant = parts
    if len(language) == 2 and not _is_known(language):
        return None
    if region and region not in ("XX", *_english().territories, *_cldr("territory_aliases")):
        return None
    if language != "zh" and region == _likely(language, script, "")[1]:
        region = ""
    return _joined(language, _unusual(language, script), region, variant)


def locale_tag(locale: str) -> str | None:
    """Returns the BCP 47 tag of a POSIX locale: pt_BR, sr@latin, de_DE.UTF-8; None if it is none.

    Chinese always gets a region, and Norwegian is Bokmål.
    """
    match = _LOCALE.fullmatch(locale)
    if match is None or not EXACT.fullmatch(match[1]):
        return None
    modifier = _MODIFIERS.get(match[2] or "", match[2] or "")
    if modifier not in _MODIFIERS.values() and not _is_variant(modifier):
        return None
    parts = match[1].replace("-", "_").split("_")
    for part in filter(None, modifier.split("-")):
        parts.insert(1 if len(part) == 4 else len(parts), part)
    tag = folder_tag("_".join(parts))
    if tag is None or tag.split("-")[0] != "zh":
        return "nb" if tag == "no" else tag
    _, script, region, _ = _parts(tag) or ("",) * 4
    return f"zh-{region or _CHINESE.get(script, 'CN')}"


def same(first: str, second: str) -> bool:
    """Returns whether two codes name the same language, such as zh and zho_Hans, or nb and no."""
    return canonical(first) == canonical(second)


@functools.lru_cache(maxsize=4096)
def names_language(code: str, tag: str, regions: bool = False) -> bool:
    """Returns whether a code in a corpus names a language, in any spelling: zh_cn, ZH-cn or zho for zh.

    With `regions` the code may also name the language of one region, such as EN-US for en.
    """
    parts = _parts(code)
    if parts is None or same(code, tag):
        return parts is not None
    language, script, region, variant = parts
    script = _likely(language, script, region)[0]
    return regions and same(_joined(language, script, "", variant), tag)


def known_as(code: str, known: Collection[str]) -> str | None:
    """Returns the tag of `known` that is a code's language; None if there is none, or two are."""
    if code in known:
        return code
    exact = [tag for tag in known if tag.lower() == code.replace("_", "-").lower()]
    equal = exact or [tag for tag in known if same(code, tag)]
    return equal[0] if len(equal) == 1 else None


def nearest(code: str, known: Collection[str]) -> str | None:
    """Returns the tag of `known` that is nearest to a code; None if there is none, or two are as near.

    A language of one region may stand for the language and the other way round: pt_BR finds pt if pt-BR
    is not known, and pt finds pt-BR if no other region is known.
    """
    if found := known_as(code, known):
        return found
    wider = [tag for tag in known if names_language(code, tag, regions=True)]
    near = wider or [tag for tag in known if names_language(tag, code, regions=True)]
    return near[0] if len(near) == 1 else None


def script_of(code: str) -> str:
    """Returns the ISO 15924 code of the script that a language is written in, such as Hans for yue-CN."""
    parts = _parts(code)
    return _likely(*parts[:3])[0] if parts else "Latn"


def is_english(tag: str) -> bool:
    return tag == "en" or tag.startswith("en-")


def language_name(tag: str) -> str:
    """Returns the English name of a language: "Chinese (CN)" for zh-CN; the tag if it has no name."""
    language, _, rest = tag.partition("-")
    name = _english().languages.get(language.lower())
    return tag if name is None else f"{name} ({rest})" if rest else name


def has_name(language: str) -> bool:
    return language in _english().languages


def _parts(code: str) -> tuple[str, str, str, str] | None:
    """Returns the language, script, region and variant that a code names; None if it is no code."""
    match = _CODE.fullmatch(_OLD.get(code, code))
    if match is None:
        return None
    language, script, region, variant = (part or "" for part in match.groups())
    language = language.lower()
    alias = _ALIASES.get(language) or _cldr("language_aliases").get(language, language)
    language, *implied = alias.split("_")
    for part in implied:
        script, region = (script or part, region) if len(part) == 4 else (script, region or part)
    script = _SCRIPTS.get(script.title(), script.title())
    return language, script, region.upper(), _VARIANTS.get(variant.lower(), variant.lower())


def _joined(*parts: str) -> str:
    return "-".join(filter(None, parts))


def _is_known(language: str) -> bool:
    return language in _cldr("likely_subtags") or language in _ALIASES


def _unusual(language: str, script: str) -> str:
    return "" if script == _likely(language, "", "")[0] else script


def _likely(language: str, script: str, region: str) -> tuple[str, str]:
    """Returns the script and the region; the most likely ones in place of those that are empty."""
    table = _cldr("likely_subtags")
    keys = [f"{language}_{region}", f"{language}_{script}", language]
    keys.append(_cldr("language_aliases").get(language, ""))
    full = next((table[key] for key in keys if key in table), f"{language}_Latn_")
    # In the names of locales, pt is Portuguese of Portugal.
    usual = "PT" if language == "pt" else full.split("_")[2]
    return script or full.split("_")[1], region or usual


@functools.lru_cache(maxsize=4096)
def canonical(code: str) -> tuple[str, ...]:
    """Returns the language, script, region and variant; equal for all codes of one language."""
    parts = _parts(code)
    if parts is None:
        return (code.lower(),)
    language, script, region, variant = parts
    return "nb" if language == "no" else language, *_likely(language, script, region), variant


def _is_variant(variant: str) -> bool:
    return variant in ("", *_VARIANTS.values()) or variant in map(str.lower, _english().variants)


def _cldr(table: str) -> Mapping[str, str]:
    # The import takes a tenth of a second, and not every program needs it.
    from babel.core import get_global

    return get_global(table)  # type: ignore[arg-type]


@functools.cache
def _english() -> "Locale":
    from babel.core import Locale

    return Locale("en")
