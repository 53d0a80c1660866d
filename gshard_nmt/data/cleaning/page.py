"""Counts and samples of what cleaning dropped, as one page, as JSON, and as warnings."""

import collections
import dataclasses
import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files, web_page
from gshard_nmt.data.cleaning import registry
from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.cleaning.samples import Samples

PAGE = "cleaning.html"
JSON = "cleaning.json"
TOO_MUCH = 0.1
"""A loss of more than this fraction of a language pair is said."""

_DUPLICATES = {
    "duplicate pair": "Both sides are equal to those of an earlier pair.",
    "duplicate near": "Both sides are equal to those of an earlier pair, except for case, spaces and "
    "punctuation.",
    "duplicate source": "The source is equal to that of an earlier pair.",
    "duplicate target": "The target is equal to that of an earlier pair.",
}


@dataclasses.dataclass(frozen=True)
class Direction:
    """What cleaning did to one language pair of one subset.

    Attributes:
      source, target: the languages.
      subset: the name of the corpus; "" for the main one.
      pairs: the number of training pairs before cleaning.
      removed: the number of pairs that each filter dropped, duplicates included.
      samples: samples of them, by the name of the filter.
      edited: the number of pairs that each filter changed.
    """

    source: str
    target: str
    subset: str
    pairs: int
    removed: Mapping[str, int]
    samples: Samples
    edited: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The languages with the subset, such as "de-en" or "de-en.back"."""
        pair = f"{self.source}-{self.target}"
        return f"{pair}.{self.subset}" if self.subset else pair

    @property
    def remaining(self) -> int:
        """The number of pairs after cleaning."""
        return self.pairs - sum(self.removed.values())


def write_report(directions: Sequence[Direction], settings: Cleaning, folder: Path) -> list[str]:
    """Writes cleaning.html and cleaning.json into a folder, and returns the warnings.

    Args:
      directions: all language pairs.
      settings: the settings of cleaning.
      folder: the folder of prepared data.
    """
    ordered = sorted(directions, key=lambda direction: (-direction.pairs, direction.name))
    alarms = list(warnings(ordered))
    content = json.dumps(_as_json(ordered, alarms), ensure_ascii=False, indent=1)
    files.write(folder / JSON, content + "\n")
    files.write(folder / PAGE, _page(ordered, settings, alarms))
    return alarms


def warnings(directions: Iterable[Direction]) -> Iterator[str]:
    """Yields a warning for each filter that drops more than a tenth of a language pair."""
    for direction in directions:
        for name, count in _ranked(direction.removed):
            if count <= TOO_MUCH * direction.pairs:
                continue
            samples = direction.samples.get(name, [])
            example = f", for example {_quoted(*samples[0][1:])}" if samples else ""
            remedy = (
                "leave its kind out of Cleaning.duplicates"
                if name in _DUPLICATES
                else f"turn the filter off with --gin 'Cleaning.without = [\"{name}\"]'"
            )
            yield (
                f"the filter {name!r} drops {count:,} of {direction.pairs:,} pairs of "
                f"{direction.name} ({count / direction.pairs:.0%}){example}. If these pairs are good, "
                f"{remedy}."
            )


def _quoted(source: str, target: str) -> str:
    sides = (text if len(text) <= 60 else f"{text[:60]}…" for text in (source, target))
    return " | ".join(map(repr, sides))


def _ranked(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns the names with their counts, the largest first."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _totals(directions: Sequence[Direction]) -> collections.Counter[str]:
    totals: collections.Counter[str] = collections.Counter()
    for direction in directions:
        totals.update(direction.removed)
    return totals


def _as_json(directions: Sequence[Direction], alarms: Sequence[str]) -> dict[str, Any]:
    return {
        "pairs": sum(direction.pairs for direction in directions),
        "remaining": sum(direction.remaining for direction in directions),
        "removed": dict(_ranked(_totals(directions))),
        "warnings": list(alarms),
        "directions": [
            {
                "source": direction.source,
                "target": direction.target,
                "subset": direction.subset,
                "pairs": direction.pairs,
                "remaining": direction.remaining,
                "removed": dict(_ranked(direction.removed)),
                "edited": dict(_ranked(direction.edited)),
                "samples": {
                    name: [{"source": source, "target": target} for _, source, target in samples]
                    for name, samples in sorted(direction.samples.items())
                },
            }
            for direction in directions
        ],
    }


def _page(directions: Sequence[Direction], settings: Cleaning, alarms: Sequence[str]) -> str:
    totals = _totals(directions)
    pairs = sum(direction.pairs for direction in directions)
    headline = (
        f"{totals.total():,} of {pairs:,} training pairs were left out "
        f"({totals.total() / max(pairs, 1):.2%})"
    )
    body = [
        "".join(f"<p class='unasked'>{html.escape(alarm)}</p>" for alarm in alarms),
        "<h2>Filters</h2>",
        _filters(totals, pairs, settings),
        "<h2>Language pairs</h2>"
        "<p>The numbers are pairs. A pair counts for the first filter that drops it. Each number leads "
        "to samples.</p>",
        _counts(directions, [name for name, _ in _ranked(totals)]),
        "<h2>Samples</h2>",
        *(
            _samples(direction, name, count)
            for direction in directions
            for name, count in _ranked(direction.removed)
        ),
    ]
    return web_page.page("Cleaning", headline, "\n".join(body), _STYLE)


_STYLE = """
details { border-bottom: 1px solid var(--line); }
details:target { outline: 2px solid; }
td[dir], th[dir] { text-align: start; width: 50%; unicode-bidi: plaintext; overflow-wrap: anywhere; }
"""


def _filters(totals: Mapping[str, int], pairs: int, settings: Cleaning) -> str:
    """Returns the table of all filters, also of those that dropped nothing."""
    words = {
        name: registry.first_sentence(function)
        for name, function in registry.filters(settings).items()
    }
    words |= {f"duplicate {kind}": _DUPLICATES[f"duplicate {kind}"] for kind in settings.duplicates}
    rows = [
        (
            name,
            f"{totals.get(name, 0):,}",
            f"{totals.get(name, 0) / max(pairs, 1):.3%}",
            _left(text),
        )
        for name, text in sorted(words.items(), key=lambda item: (-totals.get(item[0], 0), item[0]))
    ]
    # A filter of another stage, such as "too long" of tokenizing, has a count but no words here.
    rows += [
        (name, f"{count:,}", f"{count / max(pairs, 1):.3%}", "")
        for name, count in _ranked(totals)
        if name not in words
    ]
    return web_page.table(("filter", "pairs", "share", "what it drops"), rows)


def _left(text: str) -> str:
    return web_page.Markup(f"<div style='text-align: left'>{html.escape(text)}</div>")


def _counts(directions: Sequence[Direction], names: Sequence[str]) -> str:
    """Returns the table of language pairs and filters, the largest pair first."""
    rows = [
        (
            direction.name,
            f"{direction.pairs:,}",
            f"{direction.remaining:,}",
            f"{1 - direction.remaining / max(direction.pairs, 1):.2%}",
            *(_link(direction, name) for name in names),
        )
        for direction in directions
    ]
    return web_page.table(("pair", "before", "after", "left out", *names), rows)


def _link(direction: Direction, name: str) -> str:
    count = direction.removed.get(name, 0)
    if not count:
        return ""
    anchor = html.escape(_anchor(direction, name), quote=True)
    return web_page.Markup(f"<a href='#{anchor}'>{count:,}</a>")


def _anchor(direction: Direction, name: str) -> str:
    return f"{direction.name}-{name}".replace(" ", "-")


def _samples(direction: Direction, name: str, count: int) -> str:
    samples = direction.samples.get(name, [])
    rows = "".join(
        f"<tr><td dir='auto'>{html.escape(source)}</td><td dir='auto'>{html.escape(target)}</td></tr>"
        for _, source, target in samples
    )
    anchor = html.escape(_anchor(direction, name), quote=True)
    title = f"{direction.name}: {name}, {len(samples):,} of {count:,}"
    return (
        f"<details id='{anchor}' open><summary>{html.escape(title)}</summary>"
        f"<div class='wide'><table>{rows}</table></div></details>"
    )
