"""`gshard-data check`: lists what looks wrong in a corpus, without changing it."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gshard_nmt import files
from gshard_nmt.data.cleaning import languages, scan
from gshard_nmt.data.cleaning.overlap import OverlapSearch
from gshard_nmt.data.cleaning.report import MUCH_TOO_LONG
from gshard_nmt.data.cleaning.scan import ADVICE, EXAMPLES, SAMPLE, Example, Finding, Scan
from gshard_nmt.data.config import Data
from gshard_nmt.data.reading.layout import is_text
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair, list_corpus, read_pairs
from gshard_nmt.data.sets.directions import directions_of, labelled
from gshard_nmt.data.sets.shards import unknown_languages
from gshard_nmt.errors import UserError
from gshard_nmt.terminal import Terminal, counting, shown

_LEAST_COPIES = 3
_MISSING = {
    "train": "Nothing can be learned from this pair in this corpus.",
    "dev": "Training cannot choose the best checkpoint by this pair.",
    "test": "gshard-eval cannot score this pair.",
}


class _HeldOut(NamedTuple):
    """Dev or test lines, which may be of another corpus than the training text."""

    pair: str
    split: str
    source: str
    target: str
    sources: Sequence[str]
    references: Sequence[str]


def check_corpus(
    corpora: Mapping[str, Path], config: Data | None, report: Path | None, strict: bool
) -> list[Finding]:
    """Checks a corpus, prints what looks wrong, and returns it.

    `corpora` are its folders by the names of their subsets; the name of the main corpus is "". A `config`
    chooses its languages. `report` is a JSON file to write.
    """
    console = Terminal()
    places = ", ".join(map(str, corpora.values()))
    pairs: list[CorpusPair] = []
    for name, path in corpora.items():
        listing = list_corpus(path, name, damaged=True)
        pairs += listing.pairs
        for note in listing.notes:
            console.print(f"note: {note}.")
    if config:
        pairs = labelled(config.direction, pairs)
        for error in unknown_languages(config, pairs, f"--corpus {places}"):
            raise error
        pairs = [pair for pair in pairs if config.uses(pair.source, pair.target, pair.language)]
    findings = list(_missing(pairs))
    scans: list[Scan] = []
    groups: dict[frozenset[str], list[CorpusPair]] = {}
    for pair in pairs:
        groups.setdefault(pair.languages, []).append(pair)
    with counting("checking", len(groups)) as advance:
        for same in groups.values():
            some_scans, leaks = _check_pairs(same)
            scans += some_scans
            findings += leaks
            advance()
    for one in scans:
        findings += scan.findings(one)
        if not one.lines and not one.problem:
            what = f"The text has no line. {_MISSING[one.split]}"
            findings.append(Finding("missing", one.pair.name, one.split, one.files, what))
    findings += languages.findings(scans)
    findings.sort(key=lambda finding: (finding.pair, SPLITS.index(finding.split)))
    for line in (*_too_long(scans, config or Data()), *_lines(findings, scans, places)):
        console.print(line)
    if report:
        files.write_json(report, {"findings": [finding.to_json() for finding in findings]})
        console.print(f"report: {report}")
    if strict and findings:
        raise UserError(
            f"--corpus {places}: {_number(len(findings))} and --strict was given. Mend the corpus, or "
            "leave out --strict."
        )
    return findings


def _missing(pairs: Sequence[CorpusPair]) -> Iterator[Finding]:
    """Yields the splits that lack a side, or that neither this corpus nor another one has."""
    known = {(pair.languages, text.split) for pair in pairs for text in pair.texts}
    for pair, split in itertools.product(pairs, SPLITS):
        if split in pair.problems:
            yield Finding("missing", pair.name, split, (), pair.problems[split])
            continue
        is_elsewhere = split != "train" and (pair.languages, split) in known
        if not pair.inputs(split) and not is_elsewhere:
            what = f"There is no {split} text. {_MISSING[split]}"
            yield Finding("missing", pair.name, split, (), what)
            known.add((pair.languages, split))  # said once, also if the pair is in two places


def _check_pairs(pairs: Sequence[CorpusPair]) -> tuple[list[Scan], list[Finding]]:
    """Reads all splits of pairs with the same languages once, dev and test before train."""
    held_out: list[_HeldOut] = []
    scans: list[Scan] = []
    leaks: list[Finding] = []
    for split, pair in itertools.product(("dev", "test", "train"), pairs):
        inputs = () if split in pair.problems else pair.inputs(split)
        if not inputs:
            continue
        names = (pair.source, pair.target)
        one = Scan(pair, split, tuple(path.name for text in inputs for path in text.files))
        rows = one.rows(read_pairs(pair, split, *names))
        if split == "train":
            search = OverlapSearch(held_out)
            search.add(names, rows)
            leaks += _leaks(search, one)
        else:
            sides = tuple(zip(*rows, strict=True)) or ((), ())
            held_out.append(_HeldOut(pair.name, split, *names, *sides))
        scans.append(one.finish())
    return scans, leaks


def _leaks(search: OverlapSearch, train: Scan) -> Iterator[Finding]:
    for overlap in search.overlaps:
        part, exact = overlap.test, len(overlap.exact_pairs)
        # A few near copies in a small set may be an accident.
        lines = max(exact, len(overlap.pairs) // 4, len(overlap.lines()) // 8)
        if not overlap.is_alarming or lines < _LEAST_COPIES:
            continue
        place = "" if part.pair == train.pair.name else f" of {train.pair.name}"
        what = (
            f"{len(overlap.pairs):,} of {len(part.sources):,} lines of {part.split} are in the training "
            f"text{place} on both sides, {exact:,} of them exactly and {len(overlap.pairs) - exact:,} "
            f"almost. On one side alone, {overlap.count('source', True):,} lines of {part.source} and "
            f"{overlap.count('target', True):,} lines of {part.target} are exact copies."
        )
        numbers = (sorted(overlap.pairs) or sorted(overlap.lines()))[:EXAMPLES]
        rows = [Example(n + 1, part.sources[n], part.references[n]) for n in numbers]
        yield Finding("leak", part.pair, part.split, train.files, what, tuple(rows))


def _too_long(scans: Sequence[Scan], config: Data) -> Iterator[str]:
    """Yields a line if many training pairs do not fit into a row: they have at least a token a word."""
    pairs = long = 0.0
    for one in scans:
        for source, target in directions_of(config.direction, *one.tags) if one.sample else ():
            if one.split == "train":
                limits = {source: config.source_length, target: config.target_length}
                most = [limits[tag] for tag in one.tags]
                words = [(len(row.first.split()), len(row.second.split())) for row in one.sample]
                lost = sum(a >= most[0] or b >= most[1] for a, b in words)
                pairs, long = pairs + one.lines, long + lost / len(one.sample) * one.lines
    if long > MUCH_TOO_LONG * pairs:
        yield (
            f"note: about {round(long):,} of {round(pairs):,} training pairs are longer than "
            f"Data.source_length = {config.source_length} or Data.target_length = "
            f"{config.target_length} tokens, and gshard-data prepare would leave them out. Raise both "
            "lengths, or split the text into sentences."
        )


def _lines(findings: Sequence[Finding], scans: Sequence[Scan], places: str) -> Iterator[str]:
    files_of = {(scan.pair.name, scan.split): scan.files for scan in scans}
    for finding in findings:
        yield f"{finding.place}: {finding.kind} ({', '.join(finding.files) or 'no file'})"
        yield f"  {shown(finding.what, 0)}"
        # The rows of tables, and those of several files, are numbered together.
        files = files_of.get((finding.pair, finding.split), finding.files)
        is_row = len(files) > 3 or any(map(is_text, files))
        for example in finding.examples:
            place = f"{'row' if is_row else 'line'} {example.line}"
            yield f"    {place}: {shown(example.first)} | {shown(example.second)}"
        yield f"  {ADVICE[finding.kind]}"
    lines = sum(scan.lines for scan in scans)
    names = {scan.pair.name for scan in scans}
    total = _number(len(findings)) if findings else "nothing looks wrong"
    yield (
        f"{places}: {total} in {len(names)} pair{'s' * (len(names) != 1)} with {lines:,} lines. "
        "Languages were compared, and pairs that are too long counted, in a sample of up to "
        f"{SAMPLE:,} lines of each split; everything else saw all lines."
    )


def _number(count: int) -> str:
    return f"{count} thing{' looks' if count == 1 else 's look'} wrong"
