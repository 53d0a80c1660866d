"""One pass over a split: counts of all lines, a sample by hash, and shifts by the lengths of lines."""

import collections
import pathlib

import numpy as np

from gshard_nmt.data.cleaning import scan
from gshard_nmt.data.cleaning.scan import Drift, Scan, find_drifts
from gshard_nmt.data.sets.corpus import CorpusPair
from gshard_nmt.errors import UserError


def scanned(rows) -> Scan:
    scanner = Scan(CorpusPair(pathlib.Path("fr-en"), "fr", "en"), "train", ("train.fr", "train.en"))
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


def test_an_error_of_the_reader_ends_the_rows_and_is_kept():
    def broken():
        yield from rows_of(10)
        raise UserError("train.fr, line 11 is not UTF-8.")

    result = scanned(broken())
    assert (result.lines, result.problem) == (10, "train.fr, line 11 is not UTF-8.")
    assert len(result.sample) == 10


def test_a_few_odd_lines_are_no_finding():
    odd = [("x y " * 50, "y" * 20)]
    assert list(scan.findings(scanned(rows_of(990) + odd * 10))) == []
    (finding,) = scan.findings(
        scanned(rows_of(900) + [(f"{n} {a}", b) for n in range(60) for a, b in odd])
    )
    assert finding.kind == "odd_ratio"


def lengths(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of lines and of their translations."""
    rng = np.random.default_rng(seed)
    first = rng.lognormal(4, 0.6, number)
    return first.astype(int) + 1, (1.1 * first * rng.lognormal(0, 0.15, number)).astype(int) + 1


def test_aligned_lines_have_no_drift():
    assert find_drifts(*lengths(5000)) == []


def test_a_missing_line_is_found_at_its_place():
    first, second = lengths(20_000)
    (drift,) = find_drifts(first[:-1], np.delete(second, 10_000))
    assert drift == Drift(10_001, 19_999, -1)


def test_each_of_two_drifts_is_found():
    first, second = lengths(6000)
    second = np.concatenate([second[:2000], [40, 50], second[2000:4000], second[4002:]])
    assert find_drifts(first, second) == [Drift(2001, 4000, 2)]


def test_shuffled_lines_are_found():
    first, second = lengths(6000)
    assert find_drifts(first, np.random.default_rng(1).permutation(second)) == [Drift(1, 6000, 0)]


def test_lines_of_equal_length_say_nothing():
    same = np.full(1000, 30)
    assert find_drifts(same, same) == []
    assert find_drifts(*lengths(30)) == []
    assert find_drifts([], []) == []
