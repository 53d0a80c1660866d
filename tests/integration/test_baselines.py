"""Baselines of two tiny languages are trained until they converge, and a report compares with them."""

import json

import pytest

from tests.integration.conftest import SETTINGS, lines_of, program, succeed, usual_flags

CHANGES = {
    "STEPS": 3000,
    "Model.hidden_dim": 64,
    "Model.head_dim": 16,
    "Mesh.shape": (1,),
    "Train.checkpoint_every": 100,
    "Train.dev_every": 50,
    "Train.bleu_sentences": 8,
    "Train.patience": 2,
    "Train.log_every": 50,
    "Optimizer.cooldown_steps": 40,
}


@pytest.mark.slow
def test_two_languages_converge_and_are_in_the_report(prepared, trained, tmp_path):
    workdir = tmp_path / "converged"
    dropped = ("EXPERTS", "Model.expert_hidden_dim")
    settings = {k: v for k, v in (SETTINGS | CHANGES).items() if k not in dropped}
    flags = ["--data", prepared / "data", "--baselines_of", trained, "--workdir", workdir]
    flags += [f"--gin={name} = {value!r}" for name, value in settings.items()]
    words = ["--config", "bilingual", "--sizes", "config", *flags]
    succeed(program("train", *words, env=usual_flags()))
    for language in ("fr", "de"):
        record = json.loads((workdir / language / "baseline.json").read_text())
        # The task is learned, and the model ended because dev BLEU does not rise any more. Then it has
        # trained on, and its learning rate has fallen to 0.
        assert record["ended"] == "patience"
        assert record["dev_bleu"] >= record["cooldown"]["dev_bleu_before"] > 10
        log = lines_of(workdir / language)
        rates = [line["learning_rate"] for line in log if "learning_rate" in line]
        assert rates[-1] < 0.05 * max(rates)
        assert record["dev_bleu"] == max(line["dev_bleu"] for line in log if "dev_bleu" in line)
    # The second language uses the programs of the first one.
    newest = max(file.stat().st_mtime_ns for file in (workdir / "programs").glob("*.jaxexport"))
    assert newest < (workdir / "de" / "data.json").stat().st_mtime_ns

    flags = ["--workdir", trained, "--corpus", prepared / "corpus", "--trust_programs"]
    flags += ["--baselines", workdir, "--report", tmp_path / "report"]
    succeed(program("eval", *flags, env=usual_flags()))
    report = json.loads((tmp_path / "report" / "bleu.json").read_text())
    assert {row["lang"] for row in report["languages"]} == {"fr", "de"}
    assert all(row["delta_ci95"] for row in report["languages"])
    assert {row["ended"] for row in report["baselines"]["languages"]} == {"patience"}
