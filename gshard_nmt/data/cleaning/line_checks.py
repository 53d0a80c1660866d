"""What looks wrong with the folders of a corpus, and with the lines of each split by themselves."""

import math
from collections.abc import Iterator, Sequence

from gshard_nmt.data.cleaning.findings import EXAMPLES, Example, Finding
from gshard_nmt.data.cleaning.scan import LENGTH_SLACK, LONG, Scan, files_of
from gshard_nmt.data.sets.corpus import SPLITS, CorpusPair
from gshard_nmt.errors import UserError

_RATIO = 3.0
_LIMITS = {
    "empty": (0.0, 0, "have an empty side"),
    "copies": (0.05, 10, "have two equal sides"),
    "long": (0.001, 3, f"have more than {LONG:,} characters on a side"),
    "mojibake": (
        *(0.001, 3),
        "look as if they were decoded with a wrong encoding, or have the replacement character U+FFFD",
    ),
    "decomposed": (0.001, 3, "have accents that are characters of their own (Unicode's NFD)"),
    "no_letters": (0.05, 10, "have a side without letters"),
}
"""A kind is reported above this share of the lines and above this number of lines."""
_MOST_DUPLICATES = 0.1
_MOST_ODD = 0.02
_MOST_DRIFTS = 3
_MOST_NAMES = 5


def of_folders(pairs: Sequence[CorpusPair]) -> Iterator[Finding]:
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
    """Yields splits that are missing, splits with one side, and files that nothing reads.

    Args:
      pair: the pair.
      elsewhere: the splits that need not be in this folder.
    """
    name, is_damaged = pair.name, False
    used: set[str] = set()
    for split in SPLITS:
        try:
            files = files_of(pair, split)
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
    if not pair.folder.is_dir():
        return  # The files lie in the corpus folder itself.
    rest = sorted(path.name for path in pair.folder.iterdir() if path.is_file())
    rest = [file for file in rest if file not in used and not file.startswith(".")]
    if rest and not is_damaged:
        listed = ", ".join(rest[:_MOST_NAMES])
        more = f" and {len(rest) - _MOST_NAMES} more" if len(rest) > _MOST_NAMES else ""
        what = f"Nothing reads {listed}{more}."
        yield Finding("unused_files", name, "", tuple(rest[:_MOST_NAMES]), what)


def of_split(scan: Scan) -> Iterator[Finding]:
    """Yields what is wrong with single lines of a split, with its duplicates, and its alignment."""
    name, split, files = scan.pair.name, scan.split, scan.files
    if scan.problem:
        yield Finding("unreadable", name, split, files, scan.problem)
    yield from _drifts(scan)
    for kind, (share, least, predicate) in _LIMITS.items():
        number = scan.counts[kind]
        if number > share * scan.lines and number >= max(least, 1):
            what = (
                f"{number:,} of {scan.lines:,} lines ({_percent(number, scan.lines)}) {predicate}."
            )
            yield Finding(kind, name, split, files, what, tuple(scan.examples[kind]))
    yield from _odd_ratios(scan)
    copies = scan.counted - scan.distinct
    if scan.lines >= 100 and copies > _MOST_DUPLICATES * scan.counted:
        part = "" if scan.counted + scan.counts["empty"] >= scan.lines else "about "
        what = (
            f"{part}{_percent(copies, scan.counted)} of the lines are copies of other lines. The example "
            f"occurs {scan.copied[0][1]:,} times."
        )
        examples = tuple(example for example, _ in scan.copied[:1])
        yield Finding("duplicates", name, split, files, what[:1].upper() + what[1:], examples)


def _drifts(scan: Scan) -> Iterator[Finding]:
    name, files = scan.pair.name, scan.files
    for drift in scan.drifts[:_MOST_DRIFTS]:
        if drift.shift:
            first, second = scan.tags
            kind, what = (
                "shifted",
                f"Lines {drift.first:,} to {drift.last:,} look shifted: line N of {first} belongs to "
                f"line N {'+' if drift.shift > 0 else '-'} {abs(drift.shift)} of {second}.",
            )
        else:
            kind, what = (
                "unrelated",
                f"The two sides do not belong together in lines {drift.first:,} to {drift.last:,}, or "
                "near them: the lengths of their lines do not agree.",
            )
        rest = len(scan.drifts) - _MOST_DRIFTS
        if rest > 0 and drift is scan.drifts[_MOST_DRIFTS - 1]:
            what += f" {rest:,} more places look like this."
        within = [line for line in scan.sample if drift.first <= line.number <= drift.last]
        examples = tuple(Example(*line) for line in within[:EXAMPLES])
        yield Finding(kind, name, scan.split, files, what, examples)


def _odd_ratios(scan: Scan) -> Iterator[Finding]:
    share = scan.odd_ratios(_RATIO)
    # Lines that are shifted have odd ratios too.
    if scan.lines < 100 or scan.drifts or share <= _MOST_ODD:
        return
    usual = scan.usual_ratio()
    examples = [line for line in scan.sample if _is_odd(line.first, line.second, usual)]
    yield Finding(
        "odd_ratio",
        scan.pair.name,
        scan.split,
        scan.files,
        f"In {100 * share:.1f} % of the lines, one side is {_RATIO:.0f} times as long or as short as is "
        "usual for its translation.",
        tuple(Example(*line) for line in examples[:EXAMPLES]),
    )


def _is_odd(first: str, second: str, usual: float) -> bool:
    ratio = (len(first) + LENGTH_SLACK) / (len(second) + LENGTH_SLACK) / math.exp(usual)
    return not 1 / _RATIO < ratio < _RATIO


def _percent(number: int, total: int) -> str:
    share = 100 * number / max(total, 1)
    return f"{share:.2f} %" if share < 1 else f"{share:.0f} %"
