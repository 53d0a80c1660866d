"""The checks of the systems. tests/evaluation/report/test_faults.py seeds each fault."""

import json

import pytest

from gshard_nmt import paths
from gshard_nmt.evaluation.report import baselines_section, run_checks
from gshard_nmt.run.folder import RunFolder
from tests.run.facts import data_facts


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.gin").write_text("Model.experts = 8\n")
    (tmp_path / "data.json").write_text(json.dumps(data_facts()))
    return RunFolder(tmp_path)


def test_a_run_without_a_log_and_a_budget_raises_no_alarm(run):
    assert list(run_checks.alarms(run, ["fr"], {})) == []
    assert list(run_checks.alarms(run, ["fr"], {"fr": run})) == []


def test_damaged_lines_of_the_log_are_left_out(run):
    (run.path / "metrics.jsonl").write_bytes(
        b'{"effective_experts/encoder_1": 1.5}\n{"effec\n[1]\n\xff\n{"event": "resumed"}\n'
    )
    (alarm,) = run_checks.alarms(run, ["fr"], {})
    assert alarm.startswith("Layer encoder_1 works as if it had 1.5 experts, and it has 8")


def test_the_log_of_a_run_in_a_bucket_is_read(bucket):
    bucket.write("bucket/run/config.gin", b"Model.experts = 8\n")
    bucket.write("bucket/run/metrics.jsonl", b'{"effective_experts/encoder_1": 1.5}\n')
    run = RunFolder(paths.folder_path("workdir", "gs://bucket/run"))
    (alarm,) = run_checks.alarms(run, ["fr"], {})
    assert alarm.startswith("Layer encoder_1 works as if it had 1.5 experts")


def test_only_the_last_lines_of_the_log_count(run):
    rows = [1.0] * 5 + [7.5] * 3
    lines = [f'{{"effective_experts/encoder_1": {value}}}\n' for value in rows]
    (run.path / "metrics.jsonl").write_text("".join(lines))
    assert list(run_checks.alarms(run, ["fr"], {})) == []


def test_known_scores_are_baselines_too(run):
    (alarm,) = run_checks.alarms(run, ["fr", "de"], {}, {"fr": 30.0})
    assert alarm == "There is no baseline of de; the mean gain is over the other languages."


@pytest.mark.parametrize(
    ("config", "name", "scores", "improves"),
    [
        ("Model.experts = 0\n", "dev_nll", [3, 2, 1], True),
        ("Model.experts = 0\n", "dev_nll", [3, 1, 2], False),
        ("Model.experts = 0\n", "dev_nll", [2, 1], False),
        ("Train.bleu_sentences = 9\n", "dev_bleu", [1, 2, 3], True),
        ("Train.bleu_sentences = 9\n", "dev_bleu", [1, 3, 3], False),
    ],
)
def test_a_baseline_that_was_still_improving(run, config, name, scores, improves):
    run.config.write_text(config)
    lines = [f'{{"{name}/fr": {value}}}\n' for value in scores]
    (run.path / "metrics.jsonl").write_text("".join(lines))
    alarms = list(run_checks.alarms(run, ["fr"], {"fr": run}))
    assert len(alarms) == improves
    assert not improves or alarms[0].startswith("1 baselines were still improving")


def test_the_record_of_a_baseline_says_whether_it_is_converged(run):
    lines = [f'{{"dev_nll/fr": {value}}}\n' for value in (3, 2, 1)]
    (run.path / "metrics.jsonl").write_text("".join(lines))
    texts = dict.fromkeys(("kind", "language", "size", "vocabulary", "key"), "")
    numbers = dict.fromkeys(("weights", "steps", "tokens", "train_pairs", "seconds"), 1)
    for ended, count in (("patience", 0), ("minutes", 1)):
        run.write_json("baseline.json", {**texts, **numbers, "ended": ended, "limits": {}})
        assert list(run_checks.alarms(run, ["fr"], {"fr": run})) == []
        sentence = baselines_section.caution({"fr": run.path, "de": run.path / "missing"})
        assert sentence.startswith("1 of 2 baselines are not converged") == count
