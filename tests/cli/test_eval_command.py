"""gshard-eval passes several systems on, and refuses values that are no cross-entropies."""

import json
from pathlib import Path

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.data.sets.corpus import write_pairs
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
