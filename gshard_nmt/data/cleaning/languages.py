"""Finds text in a wrong language, without a model of languages: the corpus itself says how they look.

Each language has a profile: the share of each triple of neighboring characters in its training text. The
profile of English comes from many pairs, so it can tell that a pair has its sides swapped. In a corpus of
one pair, a few frequent English words tell it. A table of scripts helps with languages that are not
written in Latin letters.
"""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from gshard_nmt.data.cleaning.findings import EXAMPLES, Example, Finding
from gshard_nmt.data.cleaning.scan import Line, Scan
from gshard_nmt.data.sets.corpus import ENGLISH
from gshard_nmt.data.text.language_profiles import (
    BUCKETS,
    LEAST_CHARACTERS,
    LanguageProfiles,
    triples,
)
from gshard_nmt.data.text.scripts import script_of, scripts_of_language

_LEAST_LINES = 20
_ENGLISH_PAIRS = 20
"""Pairs whose English is compared with the text of the others."""
_MARGIN = 0.3
"""In nats per triple of characters: how much better another language must explain a whole file."""
_FOREIGN = 1.0
"""Text that a profile explains worse than its own language by this is in another language."""
_SAME = 0.2
"""Two languages whose profiles explain each other's text so nearly as well have the same text."""
_SAME_LINES = 0.5
"""The same is true if they share this part of their lines."""
_LINE_MARGIN = 0.5
_MIXED = 0.05
"""The share of lines in another language that is reported."""
_CERTAINTY = 3.0
_ENGLISH_WORDS = frozenset(
    (
        *("the", "of", "and", "to", "is", "in", "for", "a", "you", "not", "with", "this", "from"),
        *("be", "are"),
    )
)
_WORDY = 5
"""English lines of this number of words almost always have one of _ENGLISH_WORDS."""

_RELATED = (
    *(
        "nb nn no da",
        "hr bs sr sh",
        "id ms",
        "zh yue",
        "gl es pt ast an",
        "ca oc es",
        "ia ie",
        "cs sk",
    ),
    *(
        "fa prs",
        "hi mr ne mai",
        "be uk ru",
        "az tr crh",
        "fil tl",
        "ku kmr",
        "dsb hsb",
        "af nl",
        "xh zu",
    ),
)
"""Languages that differ so little that the checks do not tell them apart."""


@dataclasses.dataclass(frozen=True)
class _Side:
    """One side of one split: the text that should be in one language."""

    scan: Scan
    column: int

    @property
    def tag(self) -> str:
        return self.scan.tags[self.column]

    @property
    def file(self) -> str:
        files = self.scan.files
        return files[self.column] if len(files) == 2 else ", ".join(files)

    @property
    def texts(self) -> list[str]:
        return [(line.first, line.second)[self.column] for line in self.scan.sample]

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """float64[BUCKETS]: how often each triple of characters occurs."""
        parts = [triples(text) for text in self.texts]
        joined = np.concatenate([*parts, np.zeros(0, np.int64)])
        return np.bincount(joined, minlength=BUCKETS).astype(np.float64)

    @functools.cached_property
    def halves(self) -> tuple[np.ndarray, np.ndarray]:
        """The same, of every other line."""
        texts = self.texts
        half = np.concatenate([*map(triples, texts[::2]), np.zeros(0, np.int64)])
        first = np.bincount(half, minlength=BUCKETS).astype(np.float64)
        return first, self.counts - first

    def is_large(self, characters: int = LEAST_CHARACTERS) -> bool:
        return len(self.scan.sample) >= _LEAST_LINES and self.counts.sum() >= characters


class _Split:
    """One split, with its two sides."""

    def __init__(self, scan: Scan) -> None:
        self.scan, self.pair, self.tags = scan, scan.pair, scan.tags
        self.is_train = scan.split == "train"
        self.sides = (_Side(scan, 0), _Side(scan, 1))

    def side(self, tag: str) -> _Side | None:
        """Returns the side in a language; None if neither is."""
        return next((side for side in self.sides if side.tag == tag), None)


def findings(scans: Sequence[Scan]) -> Iterator[Finding]:
    """Yields what is wrong with the languages of all splits of a corpus."""
    splits = [_Split(scan) for scan in scans]
    train = [split for split in splits if split.is_train]
    english = _EnglishText(train)
    sound = []
    for split in train:
        reports = list(_by_english(split, english)) or list(_by_script(split))
        yield from reports
        if not reports:
            sound.append(split)
    profiles = _line_profiles(sound)
    pairs = {split.pair for split in sound}
    for split in splits:
        if not split.is_train:
            reports = list(_by_english(split, english)) or list(_by_script(split))
            if not reports and split.pair in pairs:
                reports = list(_by_training_text(split, profiles))
            yield from reports
    same = list(_same_languages(sound))
    yield from same
    copied = {finding.pair for finding in same}
    for split in sound:
        if split.pair.name not in copied:
            yield from _mixed(split, profiles)


def _finding(kind: str, side: _Side, what: str) -> Finding:
    scan = side.scan
    examples = tuple(Example(*line) for line in scan.sample[:EXAMPLES])
    return Finding(kind, scan.pair.name, scan.split, (side.file,), what, examples)


def _swapped(scan: Scan) -> Finding:
    first, second = scan.tags
    return Finding(
        "swapped",
        scan.pair.name,
        scan.split,
        scan.files,
        f"The two sides look swapped: the text of {first} is in {second}, and the text of {second} is "
        f"in {first}.",
        tuple(Example(*line) for line in scan.sample[:EXAMPLES]),
    )


class _EnglishText:
    """The English sides of the training text of a few pairs, without those that are like no other."""

    def __init__(self, train: Sequence[_Split]) -> None:
        large = [(split.pair, side) for split in train if (side := split.side(ENGLISH))]
        large = [(pair, side) for pair, side in large if side.is_large()][:_ENGLISH_PAIRS]
        logs = np.array([_logs(side.counts) for _, side in large]).reshape(-1, BUCKETS)
        shares = np.array([side.counts / side.counts.sum() for _, side in large])
        # Element (i, j) says how well the profile of pair j explains the English of pair i.
        table = shares.reshape(-1, BUCKETS) @ logs.T
        np.fill_diagonal(table, -np.inf)
        best = table.max(1, initial=-np.inf)
        usable = np.flatnonzero(best > best.max(initial=-np.inf) - _FOREIGN)
        self._pairs = [large[n][0] for n in usable]
        self._logs, self._table = logs[usable], table[np.ix_(usable, usable)]

    def likelihoods(
        self, split: _Split, sides: Sequence[_Side]
    ) -> tuple[list[float], float] | None:
        """Compares text with the English of the other pairs.

        Returns:
          The mean log likelihood of each side, and the usual one of English text. None if there are less
          than two pairs.
        """
        others = [n for n, pair in enumerate(self._pairs) if pair is not split.pair]
        if not others or len(self._pairs) < 2:
            return None
        usual = float(np.median(self._table[np.isfinite(self._table)]))
        logs = self._logs[others].T
        values = [np.median(side.counts @ logs) / side.counts.sum() for side in sides]
        return [float(value) for value in values], usual


def _by_english(split: _Split, english: _EnglishText) -> Iterator[Finding]:
    """Looks whether the English side is English, and whether the other side is it instead."""
    own = split.side(ENGLISH)
    if own is None:
        return
    sides = [own, split.sides[1 - own.column]]
    if not all(side.is_large(LEAST_CHARACTERS // 4) for side in sides):
        return
    own_share, other_share = (_english_share(side.texts) for side in sides)
    compared = english.likelihoods(split, sides)
    if own_share is not None and own_share < 0.3 and other_share is not None and other_share > 0.5:
        yield _swapped(split.scan)
    elif compared is None:
        if own_share is not None and own_share < 0.15:
            yield _finding("wrong_language", own, "The text does not look like English.")
    else:
        values, usual = compared
        if values[1] > values[0] + _MARGIN and values[1] > usual - _FOREIGN:
            yield _swapped(split.scan)
        elif values[0] < usual - _FOREIGN:
            yield _finding("wrong_language", own, "The text does not look like English.")
        elif values[1] > usual - _MARGIN and values[1] > values[0] - _SAME:
            what = f"The text of {sides[1].tag} looks like English."
            yield _finding("wrong_language", sides[1], what)


def _english_share(texts: Sequence[str]) -> float | None:
    """Returns the share of long lines with a frequent English word; None with few long lines."""
    rows = [words for text in texts if len(words := text.casefold().split()) >= _WORDY]
    if len(rows) < _LEAST_LINES:
        return None
    return sum(not _ENGLISH_WORDS.isdisjoint(words) for words in rows) / len(rows)


def _by_script(split: _Split) -> Iterator[Finding]:
    """Looks whether most letters of each side are of the scripts of its language."""
    for side in split.sides:
        expected = scripts_of_language(side.tag)
        if not expected or not side.is_large(LEAST_CHARACTERS // 4):
            continue
        scripts: collections.Counter[str] = collections.Counter()
        for text in side.texts:
            for character, number in collections.Counter(text).items():
                scripts[script_of(character)] += number
        del scripts[""]
        if scripts and sum(scripts[name] for name in expected) < 0.3 * scripts.total():
            script, number = scripts.most_common(1)[0]
            yield _finding(
                "wrong_script",
                side,
                f"{100 * number / scripts.total():.0f} % of the letters are {_script_name(script)}, but "
                f"{side.tag} is written in {' or '.join(sorted(map(_script_name, expected)))}.",
            )


def _script_name(script: str) -> str:
    return "Chinese or Japanese" if script == "CJK" else script.title()


def _by_training_text(split: _Split, profiles: LanguageProfiles) -> Iterator[Finding]:
    """Compares both sides of dev or test with the training text of all languages."""
    sides = split.sides
    if not all(side.is_large(LEAST_CHARACTERS // 4) for side in sides):
        return
    seen = [_language(side, profiles) for side in sides]
    if seen == [split.tags[1], split.tags[0]]:
        yield _swapped(split.scan)
        return
    for side, language in zip(sides, seen, strict=True):
        if language:
            yield _finding(
                "wrong_language",
                side,
                f"The text of {side.tag} looks like the training text of {language}.",
            )


def _language(side: _Side, profiles: LanguageProfiles) -> str | None:
    """Returns the language that explains a text better than its own; None if there is none."""
    if side.tag not in profiles.languages:
        return None
    means = np.mean([profiles.likelihoods(text) for text in side.texts if text.strip()], axis=0)
    best = profiles.languages[int(means.argmax())]
    own = means[profiles.languages.index(side.tag)]
    return best if means.max() > own + _MARGIN and not _are_related(best, side.tag) else None


def _same_languages(train: Sequence[_Split]) -> Iterator[Finding]:
    """Looks for languages whose training text is that of another language."""
    sides = [
        side
        for split in train
        for side in split.sides
        if side.tag != ENGLISH and side.is_large(2 * LEAST_CHARACTERS)
    ]
    logs = np.array([_logs(side.halves[0]) for side in sides]).reshape(-1, BUCKETS)
    shares = np.array([side.halves[1] / side.halves[1].sum() for side in sides])
    table = shares.reshape(-1, BUCKETS) @ logs.T
    for n, side in enumerate(sides):
        for m, other in enumerate(sides[:n]):
            if side.tag == other.tag or _are_related(side.tag, other.tag):
                continue
            losses = (table[n, n] - table[n, m], table[m, m] - table[m, n])
            share = _shared(side, other)
            if min(losses) < _SAME or share > _SAME_LINES:
                what = (
                    f"The text of {side.tag} looks like the text of {other.tag} in "
                    f"{other.scan.pair.name}; one of the two is wrong."
                )
                if share > 0.01:
                    what += f" About {100 * share:.0f} % of their lines are equal."
                yield _finding("same_text", side, what)


def _shared(side: _Side, other: _Side) -> float:
    """Estimates the share of the distinct lines of two languages that both have (MinHash)."""
    first, second = side.scan.signatures[side.column], other.scan.signatures[other.column]
    size = min(len(first), len(second))
    if size < _LEAST_LINES:
        return 0.0
    smallest = np.union1d(first, second)[:size]
    return len(np.intersect1d(np.intersect1d(first, second), smallest)) / size


def _line_profiles(train: Sequence[_Split]) -> LanguageProfiles:
    text: dict[str, list[str]] = collections.defaultdict(list)
    for split in train:
        for side in split.sides:
            text[side.tag] += side.texts
    return LanguageProfiles(text)


def _mixed(split: _Split, profiles: LanguageProfiles) -> Iterator[Finding]:
    """Looks for single lines in another language."""
    scan = split.scan
    for column, tag in enumerate(split.tags):
        foreign: dict[str, list[Line]] = collections.defaultdict(list)
        possible = 0
        for line in scan.sample:
            if line.first != line.second:
                possible += 1
                other = profiles.other_language(
                    (line.first, line.second)[column], tag, _LINE_MARGIN
                )
                if other and not _are_related(other, tag):
                    foreign[other].append(line)
        number = sum(map(len, foreign.values()))
        if _surely_above(number, possible, _MIXED):
            most, lines = max(foreign.items(), key=lambda item: len(item[1]))
            side = split.sides[column]
            yield dataclasses.replace(
                _finding(
                    "mixed_languages",
                    side,
                    f"{number:,} of {possible:,} lines of the sample ({100 * number / possible:.0f} %) "
                    f"look like another language than {tag}, most of them like {most}.",
                ),
                examples=tuple(Example(*line) for line in lines[:EXAMPLES]),
            )


def _surely_above(number: int, possible: int, limit: float) -> bool:
    """Returns whether a share is above a limit, by the lower end of its Wilson interval."""
    n, z2 = max(possible, 1), _CERTAINTY**2
    share = number / n
    spread = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n)
    return (share + z2 / (2 * n) - spread) / (1 + z2 / n) > limit


def _are_related(first: str, second: str) -> bool:
    tags = {tag.replace("_", "-").split("-")[0].lower() for tag in (first, second)}
    return len(tags) == 1 or any(tags <= set(group.split()) for group in _RELATED)


def _logs(counts: np.ndarray) -> np.ndarray:
    smoothed = counts + 0.1
    return np.log(smoothed / smoothed.sum())
