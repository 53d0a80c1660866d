"""gshard-eval passes several systems on, and refuses values that are no cross-entropies."""

import json
from pathlib import Path

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.evaluation.metrics.metrics import METRICS
from gshard_nmt.evaluation.systems.opening import Others
from tests.run.facts import data_facts

WORDS = ["eval", "--workdir=run", "--corpus=corpus", "--report=new"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns the current folder, with two run folders and a corpus."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.json").write_text(json.dumps(data_facts()))
    write_pairs(tmp_path / "corpus" / "fr-en", "test", "fr", "en", [("un", "one")])
    return tmp_path


def test_several_systems_are_passed_on(folder, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr("gshard_nmt.evaluate.evaluate", lambda *words: calls.append(words))
    others = ["--workdir=other", "--name=A", "--name=B", "--cross_entropies=1.5,2"]
    assert commands.main([*WORDS, *others, "--scores=paper.json"]) == 0
    ((first, *_, request),) = calls
    assert first == Path("run")
    assert request.others == Others([Path("other")], ["A", "B"], [Path("paper.json")], [2.0, 1.5])
    assert commands.main([*WORDS, "--workdir=gone"]) == 2
    assert "--workdir gone: there is no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a", "1,,2", "0", "-1", "nan", "inf"])
def test_cross_entropies_are_numbers_above_0(folder, capsys, text):
    assert commands.main([*WORDS, f"--cross_entropies={text}"]) == 2
    assert capsys.readouterr().err == (
        f"gshard-eval: --cross_entropies is '{text}'; it must be numbers above 0 with commas between "
        "them, such as 2.5,2,1.5.\n"
    )


@pytest.fixture
def score_folder(tmp_path, monkeypatch):
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


# fmt: off
MISTAKES = [
    ([], "--workdir, --corpus and --report are missing."),
    (["--test_set=plain"], "--workdir and --report are missing."),
    (RUN,
     "--corpus and --test_set are missing. Give one of them: --corpus DIR has your own text, and "
     "--test_set DIR the files of FLORES, NTREX or WMT. See gshard-eval --help."),
    (["--hypotheses=system"], "--references and --target are missing."),
    ([*RUN, "--corpus=plain", "--format=wmt"],
     "--format has no effect without --test_set. Add --test_set, or leave out --format. See "
     "gshard-eval --help."),
    ([*FILES, *RUN],
     "--hypotheses scores files and no run, so it cannot be used with --workdir. Give "
     "one of them."),
    ([*RUN, "--corpus=plain", "--target=en"],
     "--target has no effect without --hypotheses. Add --hypotheses, or leave out --target. "
     "See gshard-eval --help."),
    ([*FILES, "--metrics", "bleu", "blue"],
     "--metrics names 'blue'; the metrics are "
     f"{', '.join(METRICS)}. Choose among these."),
    ([*FILES, "--metrics"],
     "--metrics names ''; the metrics are "
     f"{', '.join(METRICS)}. Choose among these."),
    ([*FILES, "--length_edges", "20", "10"],
     "--length_edges is 20 10; lengths are whole numbers from 1 in ascending order. Give for "
     "example --length_edges 10 20 30 40."),
    ([*FILES, "--length_edges=1.5"],
     "--length_edges is '1.5'; lengths are whole numbers from 1. Give for example --length_edges "
     "10 20 30 40."),
    ([*RUN, "--test_set=run"],
     "--test_set run has no known test set. It must have files such as devtest/fra_Latn.devtest "
     "(flores), newstest2019-ref.fra.txt (ntrex), newstest2014-deen-src.de (wmt), or src.de and "
     "ref.en (plain)."),
]
# fmt: on


@pytest.mark.parametrize(("words", "expected"), MISTAKES)
def test_a_wrong_command_line_ends_with_2_and_one_message(score_folder, capsys, words, expected):
    assert commands.main(["eval", *words]) == 2
    assert message(capsys) == expected
    assert not (score_folder / "new").exists()


def test_files_are_scored_without_a_run(score_folder, capsys):
    words = ["--hypotheses", "system", "other", "--references", "plain/ref.en", "--target=en"]
    more = ["--metrics", "chrf++,ter", "--length_edges", "3", "--sources=plain/src.fr"]
    assert commands.main(["eval", *words, *more, "--report=new"]) == 0
    contents = json.loads((score_folder / "new" / "bleu.json").read_text())
    assert [row["file"] for row in contents["hypotheses"]] == ["system", "other"]
    assert contents["length_buckets"]["edges"] == [3]
    assert contents["languages"][0]["ter"] == 0
    assert "chrF++" in capsys.readouterr().out


def test_a_test_set_and_the_metrics_reach_the_evaluation(score_folder, monkeypatch):
    calls = []
    monkeypatch.setattr("gshard_nmt.evaluate.evaluate", lambda *words: calls.append(words))
    write_pairs(score_folder / "corpus" / "fr-en", "train", "fr", "en", [("un", "one")])
    test_set = ["--test_set=plain", "--checkpoint=average:3", "--routing"]
    assert commands.main(["eval", *RUN, *test_set, "--metrics", "ter"]) == 0
    more = ["--corpus=corpus", "--leave_out_overlap"]
    assert commands.main(["eval", *RUN, "--test_set=plain", *more]) == 0
    assert [corpus for _, corpus, *_ in calls] == [None, {"": Path("corpus")}]
    call, other = (words[-1] for words in calls)
    assert (call.choices.checkpoint, bool(call.count_experts)) == ("average:3", True)
    assert (other.choices.checkpoint, other.count_experts) == ("best", None)
    assert (call.options.leave_out_overlap, other.options.leave_out_overlap) == (False, True)
    assert call.options.measures.names == ("ter",)
    assert call.published.name == "plain"
    assert list(call.published.directions) == [("fr", "en")]


def test_the_help_names_every_metric(capsys):
    assert commands.main(["eval", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in METRICS)
