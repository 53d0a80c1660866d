"""Tells languages apart by the triples of neighboring characters in the text at hand.

The profiles come from the sentences of a corpus or an evaluation, so no model of languages is needed.
They can tell only the languages of these sentences from each other.
"""

from collections.abc import Iterable, Mapping

import numpy as np

_BUCKETS = 1 << 14
_SMOOTHING = 0.1
_MULTIPLIERS = np.array([0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35], np.uint64)
_LEAST_CHARACTERS = 2000
"""A profile of less text would say little."""
_MOST_LINES = 3000
"""Lines of each language that a profile is made of."""


class LanguageProfiles:
    """The share of each triple of characters in the text of languages, from 2,000 characters on."""

    def __init__(self, text: Mapping[str, Iterable[str]]) -> None:
        counts = {}
        for language, lines in sorted(text.items()):
            parts = [_triples(line) for _, line in zip(range(_MOST_LINES), lines, strict=False)]
            if sum(map(len, parts)) >= _LEAST_CHARACTERS:
                counts[language] = np.bincount(np.concatenate(parts), minlength=_BUCKETS)
        self.languages = list(counts)
        smoothed = np.array(list(counts.values()), np.float64).reshape(-1, _BUCKETS) + _SMOOTHING
        # float32[bucket, language], so that the numbers of one triple lie together.
        self._logs = np.log(smoothed / smoothed.sum(1, keepdims=True)).T.astype(np.float32).copy()

    def likelihoods(self, line: str) -> np.ndarray:
        """Returns float32[language], the mean log likelihood of a triple; 0 for an empty line."""
        buckets = _triples(line)
        return self._logs[buckets].sum(0) / max(len(buckets), 1)

    def means(self, lines: Iterable[str]) -> np.ndarray:
        """Returns float64[language], the mean of `likelihoods` over the lines that have text."""
        rows = [self.likelihoods(line) for line in lines if line.strip()]
        if not rows:
            return np.zeros(len(self.languages))
        return np.array(rows, np.float64).mean(axis=0)

    def other_language(self, line: str, language: str, margin: float) -> str | None:
        """Returns the language that explains a line better than its own does; None if there is none.

        It must be better by `margin` nats per triple. Lines of fewer than 20 characters give None.
        """
        if language not in self.languages or len(line) < 20:
            return None
        values = self.likelihoods(line)
        best = int(values.argmax())
        is_other = values[best] > values[self.languages.index(language)] + margin
        return self.languages[best] if is_other else None


def _triples(line: str) -> np.ndarray:
    """Returns int64[length], the bucket of each triple of characters of a line in lower case."""
    folded = " ".join(line.casefold().split())
    if not folded:
        return np.zeros(0, np.int64)
    content = f"  {folded} ".encode("utf-32-le", "replace")
    points = np.frombuffer(content, np.uint32).astype(np.uint64)
    mixed = sum(points[i : len(points) - 2 + i] * _MULTIPLIERS[i] for i in range(3))
    return ((mixed >> np.uint64(16)) % np.uint64(_BUCKETS)).astype(np.int64)
