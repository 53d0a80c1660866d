"""Which differences are significant: gains over the baselines, and other runs beside the main run."""

import html
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from gshard_nmt.evaluation import significance
from gshard_nmt.evaluation.corpora import fingerprints_of
from gshard_nmt.evaluation.report import web_page
from gshard_nmt.evaluation.report.report import Section, bounds, interval_text
from gshard_nmt.evaluation.significance import RATE, Comparison
from gshard_nmt.evaluation.systems import Result, System, Systems

EDGES = (10, 20, 30, 40)
"""The lengths, in words of the source, at which a bucket of the scores by length begins."""
_WITHOUT_SPACES = ("zh", "yue", "ja", "th", "km", "lo", "my", "bo", "dz")
"""Languages whose length is counted in characters."""


def significance_section(main: System) -> Section | None:
    """Returns which gains over the baselines are not chance; None without translations of baselines.

    The false discovery rate is controlled over the directions.
    """
    gains = {r.test.direction_name: r.gain for r in main.results if r.gain}
    if not gains:
        return None
    adjusted = significance.adjusted_p_values([gain.p_value for gain in gains.values()])
    compared = dict(zip(gains, zip(gains.values(), adjusted, strict=True), strict=True))
    rows = {
        name: {
            "delta": round(gain.delta, 2),
            "ci95": [round(bound, 2) for bound in gain.interval],
            "p": gain.p_value,
            "adjusted_p": adjusted_p,
            "significant": adjusted_p <= RATE,
        }
        for name, (gain, adjusted_p) in compared.items()
    }
    better, worse = _significant(compared.values())
    note = (
        f"BLEU: {better} of {len(rows)} directions are significantly better than the baseline, and "
        f"{worse} significantly worse ({significance.METHOD}, false discovery rate {RATE:.0%})."
    )
    content = (
        f"<p>{note} There were {significance.RESAMPLES:,} draws. Of the differences that are called "
        "significant, at most this share is expected to be chance (Benjamini and Hochberg).</p>\n"
        f"{_table('gain in BLEU', compared)}"
    )
    data = {
        "rate": RATE,
        "resamples": significance.RESAMPLES,
        "method": f"{significance.METHOD}, two-sided; Benjamini-Hochberg over directions",
        "bleu": rows,
    }
    return Section("significance", "Which gains are significant", content, data, notes=(note,))


def differences_section(systems: Systems) -> Section | None:
    """Returns the section that compares each later run with the main run; None if there is none."""
    if not systems.others:
        return None
    main = systems.main
    parts = [
        f"<p>Each run is compared with {html.escape(main.name)} by {significance.METHOD} with "
        f"{significance.RESAMPLES:,} draws; the intervals come from the paired bootstrap. The p-values "
        f"of the directions of a run are adjusted together: at most {RATE:.0%} of the differences that "
        "are called significant are expected to be chance (Benjamini and Hochberg).</p>"
    ]
    notes, data = [], {}
    for system in systems.others:
        compared = {
            r.test.direction_name: (r.comparison, r.adjusted_p)
            for r in system.ordered()
            if r.comparison and r.adjusted_p is not None
        }
        better, worse = _significant(compared.values())
        data[system.name] = {
            "directions": len(system.results),
            "better": better,
            "worse": worse,
            "false_discovery_rate": RATE,
        }
        average = system.average()
        notes.append(
            f"{system.name}: {average['difference']:+.1f} BLEU"
            f"{bounds(average['difference_ci95'], '+.1f')} on average compared with {main.name}; "
            f"significantly better in {better} of {len(system.results)} directions, and significantly "
            f"worse in {worse} ({significance.METHOD}, false discovery rate {RATE:.0%})."
        )
        name, note = html.escape(system.name), html.escape(notes[-1])
        parts.append(f"<h3>{name}</h3>\n<p>{note}</p>\n{_table('difference in BLEU', compared)}")
    title = "Which differences between systems are significant"
    return Section("differences", title, "\n".join(parts), data, notes=tuple(notes))


def _significant(compared: Iterable[tuple[Comparison, float]]) -> tuple[int, int]:
    """Returns how many comparisons are significantly better, and how many significantly worse."""
    found = [comparison.delta for comparison, adjusted_p in compared if adjusted_p <= RATE]
    return sum(delta > 0 for delta in found), sum(delta < 0 for delta in found)


def _table(head: str, compared: Mapping[str, tuple[Comparison, float]]) -> str:
    """Returns the table of comparisons and their adjusted p-values, by direction."""
    rows = [
        [
            name,
            f"{comparison.delta:+.1f}",
            interval_text(comparison.interval),
            f"{comparison.p_value:.4f}",
            f"{adjusted_p:.4f}",
            "yes" if adjusted_p <= RATE else "no",
        ]
        for name, (comparison, adjusted_p) in compared.items()
    ]
    heads = ("direction", head, "95 % interval", "p", "adjusted p", "significant")
    return web_page.table(heads, rows)


def cautions(systems: Systems) -> Iterator[tuple[str, str]]:
    """Yields what a reader must know before comparing runs with the main run: (name, sentence)."""
    main = systems.main.run
    for system in (*systems.others, *systems.baselines):
        if not main or not system.run:
            continue
        if fingerprints_of(main) != fingerprints_of(system.run):
            own, of_main = (
                ", ".join(f"{name} {digits}".strip() for name, digits in each.items())
                for each in map(fingerprints_of, (system.run, main))
            )
            yield (
                f"training text of {system.name}",
                f"{system.name} was trained on other text than the main run: the fingerprints of the "
                f"corpora are {own} and {of_main}. The scores compare models together with their text.",
            )
        elif system in systems.others and sorted(main.directions) != sorted(system.run.directions):
            yield (
                f"directions of {system.name}",
                f"{system.name} has other directions than the main run.",
            )


def length(source: str, language: str) -> int:
    """Returns the number of words of a source, or of characters if its language puts no spaces."""
    words = source.split()
    return len("".join(words) if language.split("-")[0] in _WITHOUT_SPACES else words)


def length_section(main: System) -> Section:
    """Returns the scores of short and of long sentences."""
    ranges = list(zip((0, *EDGES), (*EDGES, None), strict=True))
    directions = {
        result.test.direction_name: [_bucket(result, *ends) for ends in ranges]
        for result in main.results
    }
    names = [f"{start}+" if end is None else f"{start}-{end - 1}" for start, end in ranges]
    rows = [(name, *map(_bucket_cell, buckets)) for name, buckets in directions.items()]
    text = (
        "<p>BLEU of the sentences whose source has so many words (characters, if the language puts no "
        "spaces between words); in brackets the gain over the baseline, and the number of sentences. "
        f"Scores of few sentences vary by chance.</p>\n{web_page.table(['direction', *names], rows)}"
    )
    data = {"edges": list(EDGES), "directions": directions}
    return Section("length_buckets", "Scores by length of the source", text, data)


def _bucket(result: Result, start: int, end: int | None) -> dict[str, Any]:
    """Returns the scores of the sentences whose source has `start` to `end` - 1 words."""
    lengths = np.array([length(source, result.test.source) for source in result.test.sources])
    chosen = (lengths >= start) & (lengths < (np.inf if end is None else end))

    def score(system: Result | None) -> float | None:
        if system is None or system.statistics is None or not chosen.any():
            return None
        return round(float(significance.bleu_of(system.statistics[chosen].sum(0))), 2)

    return {
        "start": start,
        "end": end,
        "sentences": int(chosen.sum()),
        "bleu": score(result),
        "baseline_bleu": score(result.baseline),
    }


def _bucket_cell(bucket: Mapping[str, Any]) -> str:
    score, baseline = bucket["bleu"], bucket["baseline_bleu"]
    if score is None:
        return ""
    gain = "" if baseline is None else f"{score - baseline:+.1f}; "
    return f"{score:.1f} ({gain}{bucket['sentences']:,})"
