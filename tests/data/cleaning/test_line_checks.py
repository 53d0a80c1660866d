"""What is wrong with folders and with single lines; tests/test_check_corpus.py has each fault."""

import numpy as np

from gshard_nmt.data.cleaning import line_checks
from gshard_nmt.data.cleaning.scan import Scan
from gshard_nmt.data.cleaning.shifts import Drift
from gshard_nmt.data.sets.corpus import CorpusPair, find_pairs, write_pairs


def test_a_whole_pair_has_no_finding_and_each_missing_split_has_one(tmp_path):
    folder = tmp_path / "fr-en"
    for split in ("train", "dev", "test"):
        write_pairs(folder, split, "fr", "en", [("a", "b")])
    assert list(line_checks.of_folders(find_pairs(tmp_path))) == []
    for file in folder.glob("train*"):
        file.unlink()
    (finding,) = line_checks.of_folders(find_pairs(tmp_path))
    assert (finding.split, finding.what) == (
        "train",
        "There is no train text. Nothing can be learned from this pair.",
    )


def test_many_drifts_are_told_in_few_findings(tmp_path):
    pair = CorpusPair(tmp_path / "fr-en", "fr", "en")
    drifts = [Drift(1000 * n, 1000 * n + 500, 1) for n in range(1, 9)]
    scan = Scan(pair, "train", ("train.fr",), 9000, drifts=drifts)
    findings = list(line_checks.of_split(scan))
    assert [finding.kind for finding in findings] == ["shifted"] * 3
    assert findings[-1].what.endswith("5 more places look like this.")


def test_a_few_odd_lines_are_no_finding(tmp_path):
    pair = CorpusPair(tmp_path / "fr-en", "fr", "en")
    scan = Scan(pair, "train", ("train.fr",), 1000)
    scan.ratios = np.zeros_like(scan.ratios)
    scan.ratios[120], scan.ratios[200] = 990, 10
    assert list(line_checks.of_split(scan)) == []
    scan.ratios[200] = 100
    assert [finding.kind for finding in line_checks.of_split(scan)] == ["odd_ratio"]


def test_files_in_the_corpus_folder_itself_need_no_folder(tmp_path):
    for split in ("train", "dev", "test"):
        (tmp_path / f"fr-en.{split}.tsv").write_text("un\tone\n")
    assert list(line_checks.of_folders(find_pairs(tmp_path))) == []
