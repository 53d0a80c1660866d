"""One pass over a split: counts of all lines, a sample by hash, and copies."""

import collections
import pathlib
import unicodedata

from gshard_nmt.data.cleaning import scan
from gshard_nmt.data.cleaning.scan import Scan
from gshard_nmt.data.cleaning.shifts import Drift
from gshard_nmt.data.sets.corpus import CorpusPair
from gshard_nmt.errors import UserError

PAIR = CorpusPair(pathlib.Path("fr-en"), "fr", "en")


def scanned(rows) -> Scan:
    scanner = Scan(PAIR, "train", ("train.fr", "train.en"))
    collections.deque(scanner.rows(rows), maxlen=0)
    return scanner.finish()


def rows_of(number: int) -> list[tuple[str, str]]:
    return [(f"une phrase avec le mot {n}", f"a sentence with the word {n}") for n in range(number)]


def test_the_sample_depends_on_the_lines_alone(monkeypatch):
    monkeypatch.setattr(scan, "SAMPLE", 100)
    rows = rows_of(5000)
    forward, backward = scanned(rows), scanned(rows[::-1])
    assert forward.lines == 5000
    assert len(forward.sample) == 100
    assert {line.first for line in forward.sample} == {line.first for line in backward.sample}
    assert [line.line for line in forward.sample] == sorted(line.line for line in forward.sample)
    assert all(rows[line.line - 1] == (line.first, line.second) for line in forward.sample)


def test_copies_are_counted_in_a_part_of_the_lines(monkeypatch):
    monkeypatch.setattr(scan, "_COUNTED", 500)
    rows = rows_of(4000)
    result = scanned(rows + rows[:2000])
    assert len(result.copies) <= 500
    assert abs(1 - len(result.copies) / result.copies.total() - 1 / 3) < 0.05
    assert result.copied[1] == 2


def test_an_error_of_the_reader_ends_the_rows_and_is_kept():
    def broken():
        yield from rows_of(10)
        raise UserError("train.fr, line 11 is not UTF-8.")

    result = scanned(broken())
    assert (result.lines, result.problem) == (10, "train.fr, line 11 is not UTF-8.")
    assert len(result.sample) == 10


def test_accents_that_nfc_would_join_are_decomposed():
    composed = ["é", "각", "ড়", "क़", "שׁ", "बिना"]  # NFC takes some of these apart
    assert scanned([(text, "text") for text in composed]).counts["decomposed"] == 0
    apart = [unicodedata.normalize("NFD", text) for text in ("été", "각", "Ấ")]
    assert scanned([("text", text) for text in apart]).counts["decomposed"] == 3


def test_many_drifts_are_told_in_few_findings():
    drifts = [Drift(1000 * n, 1000 * n + 500, 1) for n in range(1, 9)]
    findings = list(scan.findings(Scan(PAIR, "train", ("train.fr",), 9000, drifts=drifts)))
    assert [finding.kind for finding in findings] == ["shifted"] * 3
    assert findings[-1].what.endswith("5 more places look like this.")


def test_a_few_odd_lines_are_no_finding():
    odd = [("x y " * 50, "y" * 20)]
    assert list(scan.findings(scanned(rows_of(990) + odd * 10))) == []
    (finding,) = scan.findings(
        scanned(rows_of(900) + [(f"{n} {a}", b) for n in range(60) for a, b in odd])
    )
    assert finding.kind == "odd_ratio"
