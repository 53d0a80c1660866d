"""Translators of run folders are loaded with the changed settings; one stays in memory."""

import types

from gshard_nmt.decoding import runs
from gshard_nmt.decoding.protected import Protection
from gshard_nmt.decoding.text_translator import Hypothesis
from gshard_nmt.settings.gin_reader import load_config, read_changes
from gshard_nmt.spmd.processes import ALONE


def upper(lines, source, target):
    assert (source, target) == ("fr", "en")
    return [[Hypothesis(line.upper(), -1.0)] for line in lines]


def test_runs_are_loaded_when_they_are_used_and_one_stays(monkeypatch, tmp_path):
    loaded = []

    def load(config, run, nbest, checkpoint, processes, fits, protection):
        # The demo is trained with placeholders.
        assert (nbest, checkpoint, protection) == (1, "last", Protection())
        loaded.append((run.path.name, config.decode.beam, processes.count, fits))
        label = f"of {run.path.name}"
        return types.SimpleNamespace(translate=upper, made_by="step 7, {}".format, checkpoint=label)

    monkeypatch.setattr(runs, "load_translator", load)
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.gin").write_text(load_config("demo").text)
    translators = runs.RunTranslators(False, read_changes(["Decode.beam = 3"]), ALONE)
    for name in "aabacca":
        lines, made_by, checkpoint = translators.translate(
            tmp_path / name, "fr", "en", ["un"], "last"
        )
        assert (lines, checkpoint) == (["UN"], f"of {name}")
        assert made_by == "step 7, beam 3, gnmt length norm, alpha 1"
    assert [name for name, *_ in loaded] == ["a", "b", "a", "c", "a"]
    assert {rest for _, *rest in map(tuple, loaded) for rest in [tuple(rest)]} == {(3, 1, True)}
    chosen = runs.RunTranslators(False, read_changes(["Mesh.shape = (1,)"]), ALONE)
    chosen.translate(tmp_path / "a", "fr", "en", [], "last")
    assert loaded[-1] == ("a", 4, 1, False)
