"""Counts and samples of what cleaning dropped, as JSON and as warnings."""

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gshard_nmt import files
from gshard_nmt.data.cleaning.duplicates import hashes
from gshard_nmt.data.sets.manifest import pair_folder

JSON = "cleaning.json"
TOO_MUCH = 0.1
"""A loss of more than this fraction of a language pair is said."""
MUCH_TOO_LONG = 0.01
"""A warning says if a larger fraction of all training pairs is too long for a row."""
SAMPLES = 20
"""The number of samples of each filter and language pair."""
_MOST_CHARACTERS = 400
"""Longer lines are cut in samples."""


class Sample(NamedTuple):
    """A pair that a filter dropped. The pairs with the smallest hashes are the samples."""

    hash: int
    source: str
    target: str


Samples = dict[str, list[Sample]]
"""The samples of each filter, smallest hash first. Any order of the text gives the same samples."""


def choose(name: str, rows: Iterable[Sequence[str | float | None]]) -> list[Sample]:
    """Returns the samples of the pairs that a filter dropped. Equal pairs are one sample."""
    ordered = sorted({(str(row[0]), str(row[1])) for row in rows})
    keys = hashes(("\0".join(text) for text in ordered), f"sample {name}").tolist()
    chosen = sorted(zip(keys, ordered, strict=True))[:SAMPLES]
    return [Sample(key, *(_cut(side, _MOST_CHARACTERS) for side in text)) for key, text in chosen]


def merge(parts: Iterable[Mapping[str, Iterable[Sequence[int | str]]]]) -> Samples:
    """Returns the samples of several parts of the text as if they had been chosen together.

    The parts may come from JSON, as lists instead of `Sample`.
    """
    together: dict[str, set[Sample]] = {}
    for part in parts:
        for name, samples in part.items():
            entries = (Sample(int(key), str(a), str(b)) for key, a, b in samples)
            together.setdefault(name, set()).update(entries)
    return {name: sorted(samples)[:SAMPLES] for name, samples in together.items()}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


@dataclasses.dataclass(frozen=True)
class Direction:
    """What cleaning did to the training pairs of one language pair of one subset ("" is the main corpus).

    `pairs` were there before; `removed` counts those that each filter dropped, duplicates included.
    """

    source: str
    target: str
    subset: str
    pairs: int
    removed: Mapping[str, int]
    samples: Samples

    @property
    def name(self) -> str:
        """The languages with the subset, such as "de-en" or "de-en.back"."""
        return pair_folder(self.source, self.target, self.subset)

    @property
    def remaining(self) -> int:
        return self.pairs - sum(self.removed.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "subset": self.subset,
            "pairs": self.pairs,
            "remaining": self.remaining,
            "removed": ranked(self.removed),
            "samples": {
                name: [{"source": source, "target": target} for _, source, target in samples]
                for name, samples in sorted(self.samples.items())
            },
        }


def write_report(directions: Sequence[Direction], folder: Path) -> list[str]:
    """Writes cleaning.json into the folder of prepared data, and returns the warnings."""
    ordered = sorted(directions, key=lambda direction: (-direction.pairs, direction.name))
    alarms = list(warnings(ordered))
    content = {
        "pairs": sum(direction.pairs for direction in ordered),
        "remaining": sum(direction.remaining for direction in ordered),
        "removed": ranked(total(direction.removed for direction in ordered)),
        "warnings": alarms,
        "directions": [direction.to_json() for direction in ordered],
    }
    files.write_json(folder / JSON, content)
    return alarms


def warnings(directions: Iterable[Direction]) -> Iterator[str]:
    """Yields a warning for each filter that drops more than a tenth of a language pair."""
    for direction in directions:
        for name, count in ranked(direction.removed).items():
            if count <= TOO_MUCH * direction.pairs:
                continue
            example = ""
            for sample in direction.samples.get(name, [])[:1]:
                example = ", for example " + " | ".join(repr(_cut(x, 60)) for x in sample[1:])
            remedy = f"turn the filter off with --gin 'Cleaning.without = [\"{name}\"]'"
            if name.startswith("duplicate "):
                remedy = "leave its kind out of Cleaning.duplicates"
            yield (
                f"the filter {name!r} drops {count:,} of {direction.pairs:,} pairs of {direction.name} "
                f"({count / direction.pairs:.0%}){example}. If these pairs are good, {remedy}."
            )


def total(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sum of several counts for each name."""
    return dict(sum(map(collections.Counter, counts), collections.Counter[str]()))


def ranked(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns counts with the largest first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
