"""Files are scored without a run, and the report is that of one direction."""

import json

import numpy as np
import pytest
import sacrebleu

from gshard_nmt.errors import UserError
from gshard_nmt.evaluate import evaluate_files
from gshard_nmt.evaluation.metrics.metrics import Measures
from gshard_nmt.evaluation.report.hypothesis_files import Files, report_of
from gshard_nmt.evaluation.report.studies import Options

WORDS = ["le", "fichier", "n'est", "pas", "là,", "dossier", "«", "été", "»", "3,5", "aujourd'hui."]


@pytest.fixture
def folder(tmp_path):
    """A folder with sources, two references, a good and a bad system, all of 30 lines."""
    rng = np.random.default_rng(0)
    lines = [list(rng.choice(WORDS, rng.integers(3, 25))) for _ in range(30)]

    def noisy(rate):
        return [
            " ".join(word if rng.random() > rate else rng.choice(WORDS) for word in line)
            for line in lines
        ]

    rates = {"src": 0.0, "ref": 0.0, "ref2": 0.2, "good": 0.1, "bad": 0.7}
    for name, rate in rates.items():
        text = "".join(f"{line}\n" for line in noisy(rate))
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def lines_of(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_files_are_scored_as_sacrebleu_does(folder, capsys):
    files = Files([folder / "good"], [folder / "ref", folder / "ref2"], "fr", folder / "src", "en")
    evaluate_files(files, folder / "report", Options(Measures(("ter",))))
    contents = json.loads((folder / "report" / "bleu.json").read_text())
    (row,) = contents["languages"]
    references = [lines_of(folder / name) for name in ("ref", "ref2")]
    hypotheses = lines_of(folder / "good")
    assert row["bleu"] == round(sacrebleu.corpus_bleu(hypotheses, references).score, 2)
    assert row["chrf"] == round(sacrebleu.corpus_chrf(hypotheses, references).score, 2)
    assert row["ter"] == round(sacrebleu.corpus_ter(hypotheses, references).score, 2)
    assert (row["source"], row["target"], row["sentences"]) == ("en", "fr", 30)
    assert "nrefs:2" in contents["signature"]["bleu"]
    assert sum(b["sentences"] for b in contents["length_buckets"]["directions"]["en-fr"]) == 30
    assert lines_of(folder / "src")[0].replace("'", "&#x27;") in (
        folder / "report" / "index.html"
    ).read_text(encoding="utf-8")
    assert f"report: {folder / 'report' / 'index.html'}" in capsys.readouterr().out


def test_further_files_are_compared_with_the_first(folder):
    files = Files([folder / name for name in ("good", "bad", "good")], [folder / "ref"], "fr")
    report = report_of(files)
    (section,) = report.sections
    first, second, third = section.data
    assert "p" not in first
    assert second["significant"] is True
    assert second["delta_bleu"] < 0
    assert (third["delta_bleu"], third["p"], third["significant"]) == (0, 1, False)
    assert "<td>yes</td></tr>" in section.html
    assert section.notes[0].startswith(f"{folder / 'bad'}: BLEU {second['bleu']:.1f}, -")
    assert section.notes[1].endswith("adjusted p 1.0000, not significant")


def test_without_a_report_the_scores_are_printed(folder, capsys):
    evaluate_files(Files([folder / "good"], [folder / "ref"], "fr"), None)
    out = capsys.readouterr().out
    assert "chrF" in out
    assert "report:" not in out
    assert sorted(path.name for path in folder.iterdir()) == ["bad", "good", "ref", "ref2", "src"]


def test_other_numbers_of_lines_and_empty_files_are_errors(folder):
    (folder / "short").write_text("un\n")
    (folder / "empty").write_text("")
    wrong = {
        "short": f"has 1 line, and --references {folder / 'ref'} has 30. Give files in which line N",
        "empty": "is empty; it must have a line for each sentence.",
    }
    for name, words in wrong.items():
        for flag, files in {
            "references": Files([folder / "good"], [folder / "ref", folder / name], "fr"),
            "hypotheses": Files([folder / name], [folder / "ref"], "fr"),
            "sources": Files([folder / "good"], [folder / "ref"], "fr", folder / name),
        }.items():
            with pytest.raises(UserError) as raised:
                report_of(files)
            assert str(raised.value).startswith(f"--{flag} {folder / name} {words}")


def test_a_target_that_is_no_code_is_an_error(folder):
    with pytest.raises(UserError, match="--target is 'Chinese', which is no code of a language"):
        report_of(Files([folder / "good"], [folder / "ref"], "Chinese"))


def test_all_files_are_systems(folder):
    files = Files([folder / name for name in ("good", "bad", "good")], [folder / "ref"], "fr")
    evaluate_files(files, folder / "report")
    contents = json.loads((folder / "report" / "bleu.json").read_text())
    first, second, third = contents["systems"]
    assert [each["name"] for each in contents["systems"]] == ["good", "bad", "good (2)"]
    assert first["languages"][0]["bleu"] == contents["languages"][0]["bleu"]
    (row,) = second["languages"]
    compared = contents["hypotheses"][1]
    assert (row["bleu"], row["difference"]) == (round(compared["bleu"], 2), compared["delta_bleu"])
    assert row["difference_adjusted_p"] == compared["adjusted_p"]
    assert third["languages"][0]["difference"] == 0


def test_a_report_replaces_reports_and_no_other_pages(folder):
    files = Files([folder / "good"], [folder / "ref"], "fr")
    for _ in range(2):
        evaluate_files(files, folder / "report")
    (folder / "own").mkdir()
    (folder / "own" / "index.html").write_text("my page")
    with pytest.raises(UserError, match=r"own has a file index\.html that is not of a report"):
        evaluate_files(files, folder / "own")
    assert (folder / "own" / "index.html").read_text() == "my page"
