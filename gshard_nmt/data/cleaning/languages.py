"""Finds text in a wrong language, without a model of languages: the corpus itself says how they look.

A few frequent words tell English, also in a corpus of one pair. A table of scripts helps with languages
that are not written in Latin letters. The training text gives each language a profile, see
`text/language_profiles.py`.
"""

import collections
from collections.abc import Iterator, Sequence

from gshard_nmt.data.cleaning.scan import Finding, Scan
from gshard_nmt.data.sets.corpus import ENGLISH
from gshard_nmt.data.text.language_profiles import LanguageProfiles
from gshard_nmt.data.text.scripts import script_of, scripts_of_language

_LEAST_LINES, _LEAST_CHARACTERS = 20, 500
"""Less text says nothing."""
_MARGIN, _SAME = 0.3, 0.2
"""In nats per triple of characters: how much better another language must explain dev or test text, and
how nearly as well it may explain training text, which its own profile is made of."""
_ENGLISH_WORDS = frozenset(
    ("the", "and", "you", "your", "with", "this", "that", "from", "are", "not")
)
"""Words that other languages do not have."""
_WORDY = 5
"""Most English lines of this number of words have one of _ENGLISH_WORDS."""

_RELATED = (
    "nb nn no da", "hr bs sr sh", "id ms", "zh yue", "gl es pt ast an", "ca oc es", "ia ie", "cs sk",
    "fa prs", "hi mr ne mai", "be uk ru", "az tr crh", "fil tl", "ku kmr", "dsb hsb", "af nl", "xh zu",
)  # fmt: skip
"""Languages that differ so little that the checks do not tell them apart."""


def findings(scans: Sequence[Scan]) -> Iterator[Finding]:
    sound = []
    for scan in scans:
        reports = [*_by_english(scan)] or [*_by_script(scan)]
        yield from reports
        sound += [scan] * (not reports)
    # Half of the lines make the profiles, and the other half is looked at.
    text: dict[str, list[str]] = collections.defaultdict(list)
    for scan in sound:
        if scan.split == "train":
            for column, tag in enumerate(scan.tags):
                text[tag] += scan.texts(column)[::2]
    profiles = LanguageProfiles(text)
    for scan in sound:
        yield from _by_profile(scan, profiles)


def _by_english(scan: Scan) -> Iterator[Finding]:
    """Looks whether the English side is English, and whether the other side is it instead."""
    if ENGLISH not in scan.tags:
        return
    column = scan.tags.index(ENGLISH)
    own, other = (_english_share(scan.texts(n)) for n in (column, 1 - column))
    if own is None:
        return
    if own < 0.3 and (other or 0) > 0.5:
        first, second = scan.tags
        what = (
            f"The two sides look swapped: the text of {first} is in {second}, and the text of {second} "
            f"is in {first}."
        )
        yield scan.finding("swapped", what, scan.sample)
    elif own < 0.15:
        what = "The text does not look like English."
        yield scan.finding("wrong_language", what, scan.sample, column)


def _english_share(texts: Sequence[str]) -> float | None:
    """Returns the share of long lines with a frequent English word; None with few long lines."""
    rows = [words for text in texts if len(words := text.casefold().split()) >= _WORDY]
    if len(rows) < _LEAST_LINES:
        return None
    return sum(not _ENGLISH_WORDS.isdisjoint(words) for words in rows) / len(rows)


def _by_script(scan: Scan) -> Iterator[Finding]:
    """Looks whether most letters of each side are of the scripts of its language."""
    for column, tag in enumerate(scan.tags):
        expected, texts = scripts_of_language(tag), scan.texts(column)
        scripts: collections.Counter[str] = collections.Counter()
        for character, number in collections.Counter("".join(texts)).items():
            scripts[script_of(character)] += number
        del scripts[""]
        if not expected or not _is_large(texts) or not scripts:
            continue
        if sum(scripts[name] for name in expected) < 0.3 * scripts.total():
            script, number = scripts.most_common(1)[0]
            what = (
                f"{100 * number / scripts.total():.0f} % of the letters are {_script_name(script)}, but "
                f"{tag} is written in {' or '.join(sorted(map(_script_name, expected)))}."
            )
            yield scan.finding("wrong_script", what, scan.sample, column)


def _script_name(script: str) -> str:
    return "Chinese or Japanese" if script == "CJK" else script.title()


def _is_large(texts: Sequence[str]) -> bool:
    return len(texts) >= _LEAST_LINES and sum(map(len, texts)) >= _LEAST_CHARACTERS


def _by_profile(scan: Scan, profiles: LanguageProfiles) -> Iterator[Finding]:
    """Compares both sides with the training text of all languages."""
    for column, tag in enumerate(scan.tags):
        texts = scan.texts(column)
        means = dict(zip(profiles.languages, profiles.means(texts[1::2]).tolist(), strict=True))
        others = {mean: other for other, mean in means.items() if not _are_related(tag, other)}
        if tag not in means or not others or not _is_large(texts):
            continue
        # The English side of a pair is only a part of the English training text.
        is_profile = scan.split == "train" and tag != ENGLISH
        if max(others) > means[tag] + (-_SAME if is_profile else _MARGIN):
            what = f"The text of {tag} looks like the training text of {others[max(others)]}."
            if is_profile:
                what += " One of the two is wrong."
            yield scan.finding("wrong_language", what, scan.sample, column)


def _are_related(first: str, second: str) -> bool:
    tags = {tag.split("-")[0] for tag in (first, second)}
    return len(tags) == 1 or any(tags <= set(group.split()) for group in _RELATED)
