"""Languages of a corpus of one pair, of scripts, and of related languages."""

import collections

from gshard_nmt.data.cleaning import languages
from gshard_nmt.data.cleaning.scan import Scan
from gshard_nmt.data.sets.corpus import CorpusPair
from tests.data.cleaning import corpora


def scan(rows, source: str, target: str, folder) -> Scan:
    pair = CorpusPair(folder / f"{source}-{target}", source, target)
    scanner = Scan(pair, "train", (f"train.{source}", f"train.{target}"))
    collections.deque(scanner.rows(rows), maxlen=0)
    return scanner.finish()


def kinds(*scans: Scan) -> list[str]:
    return [finding.kind for finding in languages.findings(scans)]


def test_one_pair_alone_can_be_swapped(tmp_path):
    rows = corpora.sentences("fr", 300, "x")
    assert kinds(scan(rows, "fr", "en", tmp_path)) == []
    assert kinds(scan([(b, a) for a, b in rows], "fr", "en", tmp_path)) == ["swapped"]
    assert kinds(scan([(b, a) for a, b in rows], "en", "fr", tmp_path)) == []


def test_the_script_of_a_tag_counts(tmp_path):
    rows = corpora.sentences("fr", 300, "x")
    assert kinds(scan(rows, "el", "en", tmp_path)) == ["wrong_script"]
    assert kinds(scan(rows, "sr-Latn", "en", tmp_path)) == []
    assert kinds(scan(rows, "sr-Cyrl", "en", tmp_path)) == ["wrong_script"]
    assert kinds(scan(rows, "sr", "en", tmp_path)) == []
    assert kinds(scan(corpora.sentences("ru", 300, "x"), "ru", "en", tmp_path)) == []


def test_related_languages_may_look_alike(tmp_path):
    rows = [corpora.sentences("fr", 500, seed) for seed in ("x", "y")]
    related = [scan(part, t, "en", tmp_path) for part, t in zip(rows, ("nb", "nn"), strict=True)]
    assert kinds(*related) == []
    others = [scan(part, tag, "en", tmp_path) for part, tag in zip(rows, ("nb", "ga"), strict=True)]
    assert kinds(*others) == ["wrong_language"] * 2
