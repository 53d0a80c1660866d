"""`gshard-data check`: lists what looks wrong in a corpus, without changing it."""

import collections
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.progress import Progress

from gshard_nmt import files
from gshard_nmt.data.cleaning import languages, scan
from gshard_nmt.data.cleaning.overlap import OverlapSearch
from gshard_nmt.data.cleaning.scan import ADVICE, EXAMPLES, SAMPLE, Example, Finding, Scan
from gshard_nmt.data.config import Data
from gshard_nmt.data.reading.rows import listed
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair, find_pairs, read_pairs
from gshard_nmt.data.sets.shards import unknown_languages
from gshard_nmt.errors import UserError
from gshard_nmt.terminal import Terminal, shown

_HELD_OUT = 20_000
"""Lines of dev and of test that are looked for in the training text."""
_ALL_COMPARED = 100_000
"""Training lines that are all compared with near copies of them in mind."""
_LEAST_COPIES = 3
_MOST_NAMES = 5


@dataclasses.dataclass(frozen=True)
class _HeldOut:
    """Dev or test lines, which may be of another corpus than the training text."""

    pair: str
    split: str
    source: str
    target: str
    sources: tuple[str, ...]
    references: tuple[str, ...]


def check_corpus(
    corpus: Path | Mapping[str, Path],
    config: Data | None = None,
    report: Path | None = None,
    strict: bool = False,
) -> list[Finding]:
    """Checks a corpus, prints what looks wrong, and returns it.

    `corpus` is the corpus folder, or several folders by the names of their subsets; the name of the main
    corpus is "". A `config` chooses its languages. `report` is a JSON file to write.
    """
    console = Terminal()
    corpora = corpus if isinstance(corpus, Mapping) else {"": corpus}
    places = ", ".join(map(str, corpora.values()))
    found = (find_pairs(path, damaged=True, subset=name) for name, path in corpora.items())
    pairs = _chosen([pair for some in found for pair in some], places, config)
    findings = list(_of_folders(pairs))
    scans: list[Scan] = []
    groups: dict[frozenset[str], list[CorpusPair]] = {}
    for pair in pairs:
        groups.setdefault(pair.languages, []).append(pair)
    progress_console = Terminal(stderr=True)
    with Progress(console=progress_console, disable=not progress_console.is_terminal) as progress:
        task = progress.add_task("checking", total=len(pairs))
        for same in groups.values():
            some_scans, some_findings = _check_pairs(same)
            scans += some_scans
            findings += some_findings
            progress.advance(task, len(same))
    findings += languages.findings(scans)
    findings.sort(key=lambda finding: finding.pair)
    for line in _lines(findings, scans, places):
        console.print(line)
    if report:
        splits = [
            {"pair": s.pair.name, "split": s.split, "lines": s.lines, "sample": len(s.sample)}
            for s in scans
        ]
        value = {"findings": [finding.to_json() for finding in findings], "splits": splits}
        content = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
        files.write(report, content.encode("utf-8", "backslashreplace"))
        console.print(f"report: {report}")
    if strict and findings:
        raise UserError(
            f"--corpus {places}: {_number(len(findings))} and --strict was given. Mend the corpus, or "
            "leave out --strict."
        )
    return findings


def _chosen(pairs: Sequence[CorpusPair], places: str, config: Data | None) -> list[CorpusPair]:
    """Returns the pairs of the languages of a config. Raises UserError if one is not there."""
    if config is None or not config.languages:
        return list(pairs)
    for error in unknown_languages(config, pairs, f"--corpus {places}"):
        raise error
    return [pair for pair in pairs if config.uses(pair.source, pair.target, pair.language)]


def _of_folders(pairs: Sequence[CorpusPair]) -> Iterator[Finding]:
    """Yields what is wrong with the files of a corpus, before they are read."""
    first: dict[tuple[str, frozenset[str]], CorpusPair] = {}
    splits = {(pair.languages, text.split) for pair in pairs for text in pair.texts}
    for pair in pairs:
        # dev and test may be in another corpus.
        elsewhere = [split for split in ("dev", "test") if (pair.languages, split) in splits]
        yield from _files(pair, elsewhere)
        other = first.setdefault((pair.subset, pair.languages), pair)
        if other is not pair:
            what = f"The folder {other.folder.name} has the same two languages."
            yield Finding("twice", pair.name, "", (), what)


def _files(pair: CorpusPair, elsewhere: Sequence[str]) -> Iterator[Finding]:
    """Yields splits that are missing, if they are not elsewhere, and files that nothing reads."""
    name, is_damaged = pair.name, False
    used: set[str] = set()
    for split in SPLITS:
        try:
            files = [path.name for text in pair.inputs(split) for path in text.files]
        except UserError as error:
            is_damaged = True
            yield Finding("missing", name, split, (), str(error))
            continue
        used.update(files)
        if not files and split not in elsewhere:
            why = {
                "train": "Nothing can be learned from this pair.",
                "dev": "Training cannot choose the best checkpoint by this pair.",
                "test": "gshard-eval cannot score this pair.",
            }[split]
            yield Finding("missing", name, split, (), f"There is no {split} text. {why}")
    if is_damaged or not pair.folder.is_dir():
        return  # Without a folder, the files lie in the corpus folder itself.
    names = sorted(path.name for path in pair.folder.iterdir() if path.is_file())
    rest = [file for file in names if file not in used and not file.startswith(".")]
    if rest:
        what = f"Nothing reads {listed(rest, _MOST_NAMES)}."
        yield Finding("unused_files", name, "", tuple(rest[:_MOST_NAMES]), what)


def _check_pairs(pairs: Sequence[CorpusPair]) -> tuple[list[Scan], list[Finding]]:
    """Reads all splits of pairs with the same languages once, dev and test before train."""
    held_out: list[_HeldOut] = []
    scans: list[Scan] = []
    findings: list[Finding] = []
    for pair, split in itertools.product(pairs, ("dev", "test")):
        if files := _files_of(pair, split):
            scans.append(Scan(pair, split, files))
            rows = scans[-1].rows(read_pairs(pair, split, pair.source, pair.target))
            sides = tuple(zip(*itertools.islice(rows, _HELD_OUT), strict=True)) or ((), ())
            held_out.append(_HeldOut(pair.name, split, pair.source, pair.target, *sides))
            collections.deque(rows, maxlen=0)  # reads the rest
            scans[-1].finish()
    for pair in pairs:
        if files := _files_of(pair, "train"):
            scans.append(Scan(pair, "train", files))
            search = OverlapSearch(held_out)
            rows = scans[-1].rows(read_pairs(pair, "train", pair.source, pair.target))
            search.add((pair.source, pair.target), rows, _ALL_COMPARED)
            findings += _leaks(search, scans[-1].finish())
    for one in scans:
        findings += scan.findings(one)
        one.copies.clear()  # the scans of all pairs are kept
    scans.sort(key=lambda one: (one.pair.name, SPLITS.index(one.split)))
    return scans, findings


def _files_of(pair: CorpusPair, split: str) -> tuple[str, ...]:
    """Returns the files of a split; none if the split does not exist or lacks a side."""
    try:
        return tuple(path.name for text in pair.inputs(split) for path in text.files)
    except UserError:
        return ()


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
        if search.compared < train.lines:
            compared = f"{search.compared:,} of {train.lines:,} training lines"
            what += f" Near copies were looked for in {compared}."
        numbers = (sorted(overlap.pairs) or sorted(overlap.lines()))[:EXAMPLES]
        rows = [Example(n + 1, part.sources[n], part.references[n]) for n in numbers]
        yield Finding("leak", part.pair, part.split, train.files, what, tuple(rows))


def _lines(findings: Sequence[Finding], scans: Sequence[Scan], places: str) -> Iterator[str]:
    for finding in findings:
        yield f"{finding.place}: {finding.kind} ({', '.join(finding.files) or 'no file'})"
        yield f"  {shown(finding.what, 0)}"
        for example in finding.examples:
            yield f"    line {example.line}: {shown(example.first)} | {shown(example.second)}"
        yield f"  {ADVICE[finding.kind]}"
    lines = sum(scan.lines for scan in scans)
    names = {scan.pair.name for scan in scans}
    total = _number(len(findings)) if findings else "nothing looks wrong"
    yield (
        f"{places}: {total} in {len(names)} pair{'s' * (len(names) != 1)} with {lines:,} lines. "
        f"Languages were compared in a sample of up to {SAMPLE:,} lines of each split; everything else "
        "saw all lines."
    )


def _number(count: int) -> str:
    return f"{count} thing{' looks' if count == 1 else 's look'} wrong"
