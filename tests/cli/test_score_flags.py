"""The flags of gshard-eval for test sets, metrics and files without a run."""

import json
from pathlib import Path

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.data.sets.corpus import write_pairs
from tests.run.facts import data_facts


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.gin").write_text("Model.heads = 4\n")
    (tmp_path / "run" / "data.json").write_text(json.dumps(data_facts()))
    for place, name in (("plain", "src.fr"), ("plain", "ref.en"), (".", "system"), (".", "other")):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / name).write_text("a file is not here\nagain\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gshard-eval: ")
    return err.removeprefix("gshard-eval: ").split(" For example")[0].strip()


RUN = ["--workdir=run", "--report=new"]
FILES = ["--hypotheses=system", "--references=plain/ref.en", "--target=en"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "--workdir, --corpus and --report are missing."),
        (["--test_set=plain"], "--workdir and --report are missing."),
        (
            RUN,
            "--corpus and --test_set are missing. Give one of them: --corpus DIR has your own text, and "
            "--test_set DIR the files of FLORES, NTREX or WMT. See gshard-eval --help.",
        ),
        (["--hypotheses=system"], "--references and --target are missing."),
        (
            [*RUN, "--corpus=plain", "--format=wmt"],
            "--format has no effect without --test_set. Add --test_set, or leave out --format. See "
            "gshard-eval --help.",
        ),
        (
            [*FILES, *RUN],
            "--hypotheses scores files and no run, so it cannot be used with --workdir. Give "
            "one of them.",
        ),
        (
            [*RUN, "--corpus=plain", "--target=en"],
            "--target has no effect without --hypotheses. Add --hypotheses, or leave out --target. "
            "See gshard-eval --help.",
        ),
        (
            [*FILES, "--metrics", "bleu", "blue"],
            "--metrics names 'blue'; the metrics are bleu, chrf, chrf++, ter, spbleu, comet. "
            "Choose among these.",
        ),
        (
            [*FILES, "--metrics"],
            "--metrics names ''; the metrics are bleu, chrf, chrf++, ter, spbleu, comet. "
            "Choose among these.",
        ),
        (
            [*FILES, "--length_edges", "20", "10"],
            "--length_edges is 20 10; lengths are whole numbers from 1 in ascending order. Give for "
            "example --length_edges 10 20 30 40.",
        ),
        (
            [*FILES, "--length_edges=1.5"],
            "--length_edges is '1.5'; lengths are whole numbers from 1. Give for example --length_edges "
            "10 20 30 40.",
        ),
        (
            [*RUN, "--test_set=run"],
            "--test_set run has no known test set. It must have files such as devtest/fra_Latn.devtest "
            "(flores), newstest2019-ref.fra.txt (ntrex), newstest2014-deen-src.de (wmt), or src.de and "
            "ref.en (plain).",
        ),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_one_message(folder, capsys, words, expected):
    assert commands.main(["eval", *words]) == 2
    assert message(capsys) == expected
    assert not (folder / "new").exists()


def test_a_missing_flag_of_files_has_an_example_with_files(folder, capsys):
    assert commands.main(["eval", *FILES[:-1]]) == 2
    assert capsys.readouterr().err == (
        "gshard-eval: --target is missing. For example:\n  gshard-eval --hypotheses system.en "
        "--references ref.en --target en\nSee gshard-eval --help.\n"
    )


def test_files_are_scored_without_a_run(folder, capsys):
    words = ["--hypotheses", "system", "other", "--references", "plain/ref.en", "--target=en"]
    more = ["--metrics", "chrf++,ter", "--length_edges", "3", "--sources=plain/src.fr"]
    assert commands.main(["eval", *words, *more, "--report=new"]) == 0
    contents = json.loads((folder / "new" / "bleu.json").read_text())
    assert [row["file"] for row in contents["hypotheses"]] == ["system", "other"]
    assert contents["length_buckets"]["edges"] == [3]
    assert contents["languages"][0]["ter"] == 0
    assert "chrF++" in capsys.readouterr().out


def test_a_test_set_and_the_metrics_reach_the_evaluation(folder, monkeypatch):
    calls = []
    monkeypatch.setattr("gshard_nmt.evaluate.evaluate", lambda *words: calls.append(words[-1]))
    assert commands.main(["eval", *RUN, "--test_set=plain", "--metrics", "ter"]) == 0
    (call,) = calls
    assert call.options.measures.names == ("ter",)
    assert call.published.name == "plain"
    assert list(call.published.directions) == [("fr", "en")]


def test_a_corpus_may_be_given_beside_a_test_set(folder, monkeypatch):
    calls = []
    monkeypatch.setattr("gshard_nmt.evaluate.evaluate", lambda *words: calls.append(words[1]))
    write_pairs(folder / "corpus" / "fr-en", "train", "fr", "en", [("un", "one")])
    assert commands.main(["eval", *RUN, "--test_set=plain", "--corpus=corpus"]) == 0
    assert commands.main(["eval", *RUN, "--test_set=plain"]) == 0
    assert calls == [{"": Path("corpus")}, None]
