"""`gshard-data check`: lists what looks wrong in a corpus, without changing it."""

import collections
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.progress import Progress

from gshard_nmt import files
from gshard_nmt.data.cleaning import check_page, languages, line_checks
from gshard_nmt.data.cleaning import corpus_leaks as leaks
from gshard_nmt.data.cleaning.findings import Finding
from gshard_nmt.data.cleaning.leaks import OverlapSearch
from gshard_nmt.data.cleaning.safe_text import shown
from gshard_nmt.data.cleaning.scan import SAMPLE, Scan, Scanner, files_of, read_rows
from gshard_nmt.data.cleaning.terminal import Terminal
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair, find_pairs
from gshard_nmt.data.sets.shards import unknown_language
from gshard_nmt.errors import UserError

_HELD_OUT = 20_000
"""Lines of dev and of test that are looked for in the training text."""
_ALL_COMPARED = 100_000
"""Training lines that are all compared with near copies of them in mind."""


def check_corpus(
    corpus: Path | Mapping[str, Path],
    config: Data | None = None,
    report: Path | None = None,
    strict: bool = False,
) -> list[Finding]:
    """Checks a corpus, prints what looks wrong, and writes the report.

    Args:
      corpus: the corpus folder. Or several folders by the names of their subsets; the name of the main
        corpus is "".
      config: checks only the languages of this config; None checks all.
      report: a file that ends in .html or .json; None writes none.
      strict: whether findings are an error.

    Returns:
      The findings.

    Raises:
      UserError: the folder is not a corpus, it lacks a language of the config, or `strict` is set and
        something looks wrong.
    """
    console = Terminal()
    corpora = corpus if isinstance(corpus, Mapping) else {"": corpus}
    places = ", ".join(map(str, corpora.values()))
    pairs: list[CorpusPair] = []
    for subset, folder in corpora.items():
        pairs += find_pairs(folder, damaged=True, subset=subset)
    pairs = _chosen(pairs, places, config)
    findings: list[Finding] = list(line_checks.of_folders(pairs))
    scans: list[Scan] = []
    progress_console = Terminal(stderr=True)
    with Progress(console=progress_console, disable=not progress_console.is_terminal) as progress:
        task = progress.add_task("checking", total=len(pairs))
        for same in _by_languages(pairs):
            some_scans, some_findings = _check_pairs(same)
            scans += some_scans
            findings += some_findings
            progress.advance(task, len(same))
    findings += languages.findings(scans)
    findings.sort(key=lambda finding: finding.pair)
    _print(findings, scans, places, console)
    if report:
        _write(report, places, findings, scans)
        console.print(f"report: {report}", soft_wrap=True, markup=False)
    if strict and findings:
        raise UserError(
            f"--corpus {places}: {_number(len(findings))} and --strict was given. Mend the corpus, or "
            "leave out --strict."
        )
    return findings


def _number(count: int) -> str:
    return f"{count} thing{' looks' if count == 1 else 's look'} wrong"


def _chosen(pairs: Sequence[CorpusPair], places: str, config: Data | None) -> list[CorpusPair]:
    """Returns the pairs of the languages of a config. Raises UserError if one is not there."""
    if config is None or not config.languages:
        return list(pairs)
    chosen = [pair for pair in pairs if config.uses(pair.source, pair.target, pair.language)]
    present = {tag for pair in chosen for tag in (pair.language, pair.source, pair.target)}
    for language in config.languages:
        if language not in present:
            known = [pair.language for pair in pairs]
            raise unknown_language(language, known, f"--corpus {places}")
    return chosen


def _by_languages(pairs: Sequence[CorpusPair]) -> list[list[CorpusPair]]:
    """Returns the pairs in groups with the same two languages."""
    groups: dict[frozenset[str], list[CorpusPair]] = {}
    for pair in pairs:
        groups.setdefault(pair.languages, []).append(pair)
    return list(groups.values())


def _check_pairs(pairs: Sequence[CorpusPair]) -> tuple[list[Scan], list[Finding]]:
    """Reads all splits of pairs with the same languages once, dev and test before train."""
    held_out: list[leaks.HeldOut] = []
    scans: list[Scan] = []
    findings: list[Finding] = []
    for pair, split in itertools.product(pairs, ("dev", "test")):
        scanner = _scanner(pair, split)
        if scanner:
            rows = scanner.rows(read_rows(pair, split))
            sides = tuple(zip(*itertools.islice(rows, _HELD_OUT), strict=True)) or ((), ())
            held_out.append(leaks.HeldOut(pair, split, *sides))
            collections.deque(rows, maxlen=0)  # reads the rest
            scans.append(scanner.finish())
    for pair in pairs:
        if scanner := _scanner(pair, "train"):
            search = OverlapSearch(held_out)
            rows = scanner.rows(read_rows(pair, "train"))
            search.add((pair.source, pair.target), rows, _ALL_COMPARED)
            scans.append(scanner.finish())
            findings += leaks.findings(search, scans[-1])
    findings += [finding for scan in scans for finding in line_checks.of_split(scan)]
    scans.sort(key=lambda scan: (scan.pair.name, SPLITS.index(scan.split)))
    return scans, findings


def _scanner(pair: CorpusPair, split: str) -> Scanner | None:
    """Returns the scanner of a split; None if the split does not exist or lacks a side."""
    try:
        files = files_of(pair, split)
    except UserError:
        return None
    return Scanner(pair, split, files) if files else None


def _print(
    findings: Sequence[Finding], scans: Sequence[Scan], places: str, console: Terminal
) -> None:
    for line in _lines(findings, scans, places):
        console.print(line, markup=False, soft_wrap=True)


def _lines(findings: Sequence[Finding], scans: Sequence[Scan], places: str) -> Iterator[str]:
    """Yields the lines of the report on the terminal."""
    for finding in findings:
        yield f"{finding.place}: {finding.kind} ({', '.join(finding.files) or 'no file'})"
        yield f"  {shown(finding.what, 0)}"
        for example in finding.examples:
            yield f"    line {example.line}: {shown(example.first)} | {shown(example.second)}"
        yield f"  {finding.advice}"
    lines = sum(scan.lines for scan in scans)
    names = {scan.pair.name for scan in scans}
    total = _number(len(findings)) if findings else "nothing looks wrong"
    yield (
        f"{places}: {total} in {len(names)} pair{'s' * (len(names) != 1)} with {lines:,} lines. "
        f"Languages were compared in a sample of up to {SAMPLE:,} lines of each split; everything else "
        "saw all lines."
    )


def _write(report: Path, places: str, findings: Sequence[Finding], scans: Sequence[Scan]) -> None:
    """Writes the report as JSON or as a page, by the end of its name."""
    splits = [
        {
            "pair": scan.pair.name,
            "split": scan.split,
            "lines": scan.lines,
            "sample": len(scan.sample),
        }
        for scan in scans
    ]
    if report.suffix == ".json":
        value = {"findings": [finding.to_json() for finding in findings], "splits": splits}
        content = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    else:
        content = check_page.page(places, findings, splits)
    files.write(report, content.encode("utf-8", "backslashreplace"))
