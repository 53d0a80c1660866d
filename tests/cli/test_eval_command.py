"""gshard-eval passes what the user asks to the evaluation, and refuses what cannot be."""

from pathlib import Path

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.evaluation.metrics import KEYS
from gshard_nmt.settings.gin_reader import load_config
from tests.evaluation.run_folders import make_run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns the current folder, with two run folders, a corpus and a test set."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "other"):
        make_run(tmp_path / name, ["fr"])
    write_pairs(tmp_path / "corpus" / "fr-en", "test", "fr", "en", [("un", "one")])
    (tmp_path / "plain").mkdir()
    for name in ("src.fr", "ref.en"):
        (tmp_path / "plain" / name).write_text("a file is not here\nagain\n")
    return tmp_path


RUN = ["--workdir=run", "--report=new"]


def test_what_the_user_asks_reaches_the_evaluation(folder, monkeypatch, capsys):
    calls = []
    monkeypatch.setattr("gshard_nmt.evaluate.evaluate", lambda *words: calls.append(words))
    others = ["--workdir=other", "--name=A", "--name=B", "--metrics=ter,chrf++", "--split=dev"]
    limits = ["--sentences=7", "--baselines=plain", "--gin=Decode.beam = 2"]
    assert commands.main(["eval", *RUN, "--corpus=corpus", *others, *limits]) == 0
    test_set = ["--test_set=plain", "--checkpoint=average:3", "--routing"]
    assert commands.main(["eval", *RUN, *test_set]) == 0
    (first, corpus, split, *_, of_corpus), (_, none, *_, of_test_set) = calls
    assert (first, corpus, split, none) == (Path("run"), {"": Path("corpus")}, "dev", None)
    assert (of_corpus.others, of_corpus.baselines) == ([Path("other")], Path("plain"))
    assert of_corpus.choices.changes.apply(load_config("demo")).decode.beam == 2
    assert (of_corpus.names, of_corpus.sentences) == (["A", "B"], 7)
    assert of_corpus.metrics == ["ter", "chrf++"]
    assert (of_corpus.choices.checkpoint, of_corpus.count_experts) == ("best", None)
    assert (of_test_set.choices.checkpoint, bool(of_test_set.count_experts)) == ("average:3", True)
    assert list(of_test_set.published.directions) == [("fr", "en")]
    assert commands.main(["eval", *RUN, "--corpus=corpus", "--workdir=gone"]) == 2
    assert "--workdir gone: there is no such folder" in capsys.readouterr().err


MISTAKES = [
    ([], "--workdir, --corpus and --report are missing."),
    (["--test_set=plain"], "--workdir and --report are missing."),
    (RUN,
     "--corpus and --test_set are missing. Give one of them: --corpus DIR has your own text, and "
     "--test_set DIR the files of FLORES or plain files. See gshard-eval --help."),
    ([*RUN, "--corpus=corpus", "--test_set=plain"],
     "--test_set takes the place of --corpus. Give one of them. See gshard-eval --help."),
    ([*RUN, "--corpus=corpus", "--calibrate"],
     "--report does not go with --calibrate, which uses dev and test text of --corpus and writes no "
     "report. Leave out one of them."),
    (["--workdir=run", "--workdir=other", "--corpus=corpus", "--calibrate"],
     "--calibrate takes one run, and 2 are given. Give one --workdir."),
    ([*RUN, "--corpus=corpus", "--metrics", "bleu", "blue"],
     f"--metrics names 'blue'; the metrics are {', '.join(KEYS)}. Choose among these."),
    ([*RUN, "--corpus=corpus", "--metrics"],
     f"--metrics names ''; the metrics are {', '.join(KEYS)}. Choose among these."),
    ([*RUN, "--corpus=corpus", "--split=../x"],
     "--split ../x is a path. Give the name of a split, such as test."),
    ([*RUN, "--test_set=run"],
     "--test_set run has no known test set. It must have files such as devtest/fra_Latn.devtest "
     "(FLORES), or src.de and ref.en."),
]  # fmt: skip


@pytest.mark.parametrize(("words", "expected"), MISTAKES)
def test_a_wrong_command_line_ends_with_2_and_one_message(folder, capsys, words, expected):
    assert commands.main(["eval", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("gshard-eval: ")
    assert err.removeprefix("gshard-eval: ").split(" For example")[0].strip() == expected
    assert not (folder / "new").exists()


def test_the_help_names_every_metric(capsys):
    assert commands.main(["eval", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in KEYS)
