"""Systems beside the main run: their differences, and what a reader is warned of."""

import json

import numpy as np
import pytest

from gshard_nmt.evaluation.report import comparison, studies
from gshard_nmt.evaluation.report.comparison import Lines
from gshard_nmt.evaluation.report.report import LanguageResult
from gshard_nmt.evaluation.systems.candidates import Others, read_candidates
from gshard_nmt.evaluation.texts import translations
from tests.evaluation.run_folders import make_run, write_metrics

REFERENCES = [f"this is sentence number {n} of the test" for n in ("one", "two", "three", "four")]
TESTS = [
    translations.TestSet(tag, tag, "en", pairs, [line.upper() for line in REFERENCES], REFERENCES)
    for tag, pairs in (("fr", 90), ("de", 80))
]
DIRECTIONS = [("fr", "en"), ("de", "en")]
GOOD = {key: [line.replace("four", "five") for line in REFERENCES] for key in DIRECTIONS}
POOR = {key: [line.replace("sentence", "word") for line in REFERENCES] for key in DIRECTIONS}


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def compare(run, lines, baselines, **others):
    name, candidates = read_candidates(run, TESTS, Others(**others))
    rows = []
    for test in TESTS:
        of_baseline = baselines.get((test.source, "en"))
        studied = studies.study(test, GOOD[test.source, "en"], of_baseline)
        rows.append(
            LanguageResult(
                *(
                    test.language,
                    test.train_pairs,
                    4,
                    *studied.bleu_and_chrf,
                    studied.baseline_bleu,
                ),
                source=test.source,
                target="en",
                counts=studied.counts,
            )
        )
    return comparison.systems(name, run, rows, TESTS, candidates, Lines(GOOD, baselines, lines))


def test_a_system_against_itself_is_zero_everywhere(tmp_path, run):
    main, again = compare(run, [GOOD], GOOD, workdirs=[run.path])
    assert again.name == "run (2)"
    for result in (*main.results, *again.results):
        assert (result.difference, result.difference_ci95) == (0.0, (0.0, 0.0))
    for result in again.results:
        assert (result.delta_bleu, result.delta_ci95) == (0.0, (0.0, 0.0))


def test_a_worse_system_has_a_difference_with_an_interval_and_its_own_gain(tmp_path, run):
    other = make_run(tmp_path / "other", ["de", "pl"])
    main, worse = compare(run, [POOR], POOR, workdirs=[other.path])
    (result,) = worse.results
    assert result.direction == ("de", "en")
    assert result.train_pairs == 80  # those of the main run, which order the languages
    assert result.difference == pytest.approx(result.bleu - main.results[1].bleu)
    low, high = result.difference_ci95
    assert low < result.difference < high <= 0
    assert (result.delta_bleu, result.delta_ci95) == (0.0, (0.0, 0.0))
    assert worse.budget.experts == 8


def test_published_scores_have_no_interval(tmp_path, run):
    file = tmp_path / "paper.json"
    file.write_text(json.dumps({"name": "paper", "bleu": {"fr": 30.0}, "experts": 0}))
    main, paper = compare(run, [{}], {}, scores=[file])
    (result,) = paper.results
    assert (result.bleu, result.chrf, result.difference_ci95) == (30.0, None, None)
    assert result.difference == pytest.approx(30.0 - main.results[0].bleu)
    assert (paper.run, paper.is_dense) == (None, True)


def test_the_baselines_together_have_the_sum_of_their_costs(tmp_path, run):
    rows = [
        LanguageResult("fr", 9, 4, 30.0, 40.0, 21.0, (8.0, 10.0)),
        LanguageResult("de", 9, 4, 1, 1),
    ]
    folders = [make_run(tmp_path / "baselines" / tag, [tag]) for tag in ("fr", "de")]
    together = comparison.baselines_together(folders, rows)
    assert [(r.language, r.bleu, r.delta_bleu) for r in together.results] == [("fr", 21.0, None)]
    assert (together.budget.weights, together.budget.days) == (10, 2.0)
    assert comparison.baselines_together([], rows).budget.weights is None
    assert comparison.baselines_together([], rows[1:]) is None


def cautions_of(run, pairs=None, signature="v", **others):
    _, candidates = read_candidates(run, TESTS, Others(**others))
    return {c.name: c for c in comparison.cautions(run, candidates, pairs or {}, signature)}


def test_a_run_like_the_main_run_needs_no_caution(tmp_path, run):
    assert cautions_of(run, workdirs=[make_run(tmp_path / "same").path]) == {}


def test_other_vocabularies_and_another_corpus_are_alarms(tmp_path, run):
    other = make_run(tmp_path / "other", corpus_fingerprint="another")
    data = json.loads((other.path / "data.json").read_text())
    data["files"]["target.model"] = "1" * 64
    (other.path / "data.json").write_text(json.dumps(data))
    cautions = cautions_of(run, workdirs=[other.path])
    assert list(cautions) == ["vocabulary of other", "training text of other"]
    assert all(caution.is_alarm for caution in cautions.values())
    assert "(target.model)" in cautions["vocabulary of other"].text
    assert "another and 0123456789abcdef" in cautions["training text of other"].text
    assert comparison.other_vocabularies(run, run) == []


def test_scores_without_their_text_and_with_another_signature_are_marked(tmp_path, run):
    plain, of_report = tmp_path / "plain.json", tmp_path / "bleu.json"
    plain.write_text('{"name": "plain", "bleu": {"fr": 3}}')
    row = {"source": "fr", "target": "en", "bleu": 1, "sentences": 4}
    row["text_digest"] = comparison.text_digest(TESTS[0])
    systems = [{"name": "report", "languages": [row]}]
    of_report.write_text(json.dumps({"signature": {"bleu": "old"}, "systems": systems}))
    cautions = cautions_of(run, scores=[plain, of_report])
    assert {name: caution.is_alarm for name, caution in cautions.items()} == {
        "test text of plain": False,
        "signature of report": True,
    }
    assert cautions_of(run, signature="old", scores=[of_report]) == {}


def test_the_table_of_tokens_marks_runs_with_other_vocabularies(tmp_path, run):
    other = make_run(tmp_path / "other", files=dict.fromkeys(run.identity(), "1" * 64))
    _, candidates = read_candidates(run, TESTS, Others(workdirs=[other.path]))
    systems = comparison.systems("run", run, [], [], [], Lines(GOOD, {}, []))
    systems.append(comparison.System("other", []))
    assert list(comparison.convergence_sections(run, systems, candidates, [])) == []
    for folder in (run, other):
        write_metrics(folder, [{"step": 1, "nll": 4.0, "tokens": 70}])
    (section,) = comparison.convergence_sections(run, systems, candidates, [4.5, 3.5])
    assert section.data["tokens"] == {"run": [70.0, None], "other": [70.0, None]}
    assert section.data["other_vocabularies"] == ["other"]


def test_runs_that_differ_in_their_seeds_have_a_mean_and_an_interval_over_runs(tmp_path, run):
    config = run.config.read_text()
    others = [
        make_run(tmp_path / name, config=config + f"Train.seed = {n}\n")
        for n, name in enumerate("ab", 2)
    ]
    others.append(make_run(tmp_path / "wide", config=config + "Model.heads = 8\n"))
    lines, folders = [POOR, GOOD, POOR], [other.path for other in others]
    _, candidates = read_candidates(run, TESTS, Others(folders))
    compared = compare(run, lines, {}, workdirs=folders)
    (section,) = comparison.seeds_section(run, compared, candidates)
    assert section.data["runs"] == ["run", "a", "b"]
    values = [system.average()["bleu"] for system in compared[:3]]
    assert section.data["bleu"] == pytest.approx(sum(values) / 3, abs=0.01)
    low, high = section.data["bleu_ci95"]
    # Student's interval of three values has 4.303 standard errors on each side.
    assert high - low == pytest.approx(2 * 4.303 * np.std(values, ddof=1) / 3**0.5, abs=0.02)
    assert section.notes[0].startswith("3 runs differ only in their seeds: BLEU ")
    pair = comparison.seeds_section(run, compared[:2], candidates[:1])
    assert next(pair).data["bleu_ci95"] is None
    assert not [*comparison.seeds_section(run, compared[::3], candidates[2:])]
