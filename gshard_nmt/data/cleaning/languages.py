"""Finds text in a wrong language, without a model of languages: the corpus itself says how they look.

The training text gives each language a profile, see `text/language_profiles.py`. A few frequent words
tell English, also in a corpus of one pair. A table of scripts helps with languages that are not written
in Latin letters.
"""

import collections
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

from gshard_nmt.data.cleaning.scan import Example, Finding, Scan, surely_above
from gshard_nmt.data.sets.corpus import ENGLISH
from gshard_nmt.data.text.language_profiles import LanguageProfiles
from gshard_nmt.data.text.scripts import script_of, scripts_of_language

_LEAST_LINES = 20
_LEAST_CHARACTERS = 500
_MARGIN = 0.3
"""In nats per triple of characters: how much better another language must explain a whole file."""
_SAME = 0.2
"""Two languages have the same text if both profiles explain that of one of them nearly as well."""
_LINE_MARGIN = 0.5
_MIXED = 0.05
"""The share of lines in another language that is reported."""
_ENGLISH_WORDS = frozenset(
    ("the", "and", "you", "your", "with", "this", "that", "from", "are", "not")
)
"""Words that other languages do not have."""
_WORDY = 5
"""Most English lines of this number of words have one of _ENGLISH_WORDS."""

# fmt: off
_RELATED = (
    "nb nn no da", "hr bs sr sh", "id ms", "zh yue", "gl es pt ast an", "ca oc es", "ia ie", "cs sk",
    "fa prs", "hi mr ne mai", "be uk ru", "az tr crh", "fil tl", "ku kmr", "dsb hsb", "af nl", "xh zu",
)
# fmt: on
"""Languages that differ so little that the checks do not tell them apart."""


@dataclasses.dataclass(frozen=True)
class _Side:
    """One side of one split: the text that should be in one language."""

    scan: Scan
    column: int

    @property
    def tag(self) -> str:
        return self.scan.tags[self.column]

    @functools.cached_property
    def texts(self) -> list[str]:
        return [(line.first, line.second)[self.column] for line in self.scan.sample]

    @property
    def is_large(self) -> bool:
        return len(self.texts) >= _LEAST_LINES and sum(map(len, self.texts)) >= _LEAST_CHARACTERS

    def finding(self, kind: str, what: str, examples: Iterable[Example] = ()) -> Finding:
        """Returns a finding about this side; without examples, with the first lines of the sample."""
        finding = self.scan.finding(kind, what, tuple(examples) or self.scan.sample)
        if len(finding.files) == 2:
            finding = dataclasses.replace(finding, files=(finding.files[self.column],))
        return finding


def findings(scans: Sequence[Scan]) -> Iterator[Finding]:
    splits = [(_Side(scan, 0), _Side(scan, 1)) for scan in scans]
    sound = []
    for sides in splits:
        reports = [*_by_english(sides)] or [report for side in sides for report in _by_script(side)]
        yield from reports
        sound += [sides] * (not reports)
    train = [sides for sides in sound if sides[0].scan.split == "train"]
    # Half of the lines make the profiles, and the other half is looked at.
    profiles = LanguageProfiles(_text(train, 0))
    known = {sides[0].scan.pair for sides in train}
    for sides in sound:
        if sides[0].scan.split != "train" and sides[0].scan.pair in known:
            yield from _by_training_text(sides, profiles)
    same = list(_same_languages(train, profiles))
    yield from same
    copied = {finding.pair for finding in same}
    for sides in train:
        if sides[0].scan.pair.name not in copied:
            yield from _mixed(sides, profiles)


def _text(train: Sequence[Sequence[_Side]], start: int) -> dict[str, list[str]]:
    text: dict[str, list[str]] = collections.defaultdict(list)
    for sides in train:
        for side in sides:
            text[side.tag] += side.texts[start::2]
    return text


def _swapped(scan: Scan) -> Finding:
    first, second = scan.tags
    what = (
        f"The two sides look swapped: the text of {first} is in {second}, and the text of {second} is "
        f"in {first}."
    )
    return scan.finding("swapped", what, scan.sample)


def _by_english(sides: tuple[_Side, _Side]) -> Iterator[Finding]:
    """Looks whether the English side is English, and whether the other side is it instead."""
    for own, other in (sides, sides[::-1]):
        if own.tag == ENGLISH and (share := _english_share(own.texts)) is not None:
            if share < 0.3 and (_english_share(other.texts) or 0) > 0.5:
                yield _swapped(own.scan)
            elif share < 0.15:
                yield own.finding("wrong_language", "The text does not look like English.")


def _english_share(texts: Sequence[str]) -> float | None:
    """Returns the share of long lines with a frequent English word; None with few long lines."""
    rows = [words for text in texts if len(words := text.casefold().split()) >= _WORDY]
    if len(rows) < _LEAST_LINES:
        return None
    return sum(not _ENGLISH_WORDS.isdisjoint(words) for words in rows) / len(rows)


def _by_script(side: _Side) -> Iterator[Finding]:
    """Looks whether most letters of a side are of the scripts of its language."""
    expected = scripts_of_language(side.tag)
    if not expected or not side.is_large:
        return
    scripts: collections.Counter[str] = collections.Counter()
    for character, number in collections.Counter("".join(side.texts)).items():
        scripts[script_of(character)] += number
    del scripts[""]
    if scripts and sum(scripts[name] for name in expected) < 0.3 * scripts.total():
        script, number = scripts.most_common(1)[0]
        what = (
            f"{100 * number / scripts.total():.0f} % of the letters are {_script_name(script)}, but "
            f"{side.tag} is written in {' or '.join(sorted(map(_script_name, expected)))}."
        )
        yield side.finding("wrong_script", what)


def _script_name(script: str) -> str:
    return "Chinese or Japanese" if script == "CJK" else script.title()


def _by_training_text(sides: tuple[_Side, _Side], profiles: LanguageProfiles) -> Iterator[Finding]:
    """Compares both sides of dev or test with the training text of all languages."""
    if not all(side.is_large for side in sides):
        return
    tags = [side.tag for side in sides]
    seen = [profiles.language_of(side.texts, side.tag, _MARGIN) for side in sides]
    if seen == tags[::-1]:
        yield _swapped(sides[0].scan)
        return
    for side, language in zip(sides, seen, strict=True):
        if language and not _are_related(language, side.tag):
            what = f"The text of {side.tag} looks like the training text of {language}."
            yield side.finding("wrong_language", what)


def _same_languages(
    train: Sequence[Sequence[_Side]], profiles: LanguageProfiles
) -> Iterator[Finding]:
    side_of = {side.tag: side for sides in train for side in sides}
    text = _text(train, 1)
    means = {tag: profiles.means(text[tag]) for tag in profiles.languages}
    # English is the first, so the other language of a pair is the one that is suspicious.
    numbered = sorted(enumerate(profiles.languages), key=lambda item: item[1] != ENGLISH)
    for place, (n, tag) in enumerate(numbered):
        for m, other in numbered[:place]:
            losses = (means[tag][n] - means[tag][m], means[other][m] - means[other][n])
            if min(losses) < _SAME and not _are_related(tag, other):
                where = side_of[other].scan.pair.name
                yield side_of[tag].finding(
                    "same_text",
                    f"The text of {tag} looks like the text of {other} in {where}; one of the two is "
                    "wrong.",
                )


def _mixed(sides: tuple[_Side, _Side], profiles: LanguageProfiles) -> Iterator[Finding]:
    for side in sides:
        foreign: dict[str, list[Example]] = collections.defaultdict(list)
        lines = [line for line in side.scan.sample if line.first != line.second]
        for line in lines:
            text = (line.first, line.second)[side.column]
            language = profiles.other_language(text, side.tag, _LINE_MARGIN)
            if language and not _are_related(language, side.tag):
                foreign[language].append(line)
        number = sum(map(len, foreign.values()))
        if surely_above(number, len(lines), _MIXED):
            most, examples = max(foreign.items(), key=lambda item: len(item[1]))
            what = (
                f"{number:,} of {len(lines):,} lines of the sample ({100 * number / len(lines):.0f} %) "
                f"look like another language than {side.tag}, most of them like {most}."
            )
            yield side.finding("mixed_languages", what, examples)


def _are_related(first: str, second: str) -> bool:
    tags = {tag.replace("_", "-").split("-")[0].lower() for tag in (first, second)}
    return len(tags) == 1 or any(tags <= set(group.split()) for group in _RELATED)
