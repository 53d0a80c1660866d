"""Systems beside the main run: their scores and differences, and what a reader is warned of."""

import dataclasses
import json

import numpy as np
import pytest

from gshard_nmt.evaluation.metrics.significance import Comparison, adjusted_p_values
from gshard_nmt.evaluation.report import comparison
from gshard_nmt.evaluation.report.convergence import convergence_section
from gshard_nmt.evaluation.report.report import Request
from gshard_nmt.evaluation.systems.opening import Others, open_systems
from gshard_nmt.evaluation.systems.scoring import adjusted, scored
from gshard_nmt.evaluation.systems.systems import Budget, System, text_digest
from gshard_nmt.evaluation.texts import translations
from tests.evaluation.made_systems import evaluation_of, result_of, system_of
from tests.evaluation.run_folders import make_run, write_metrics

REFERENCES = [f"this is sentence number {n} of the test" for n in ("one", "two", "three", "four")]
TESTS = [
    translations.TestSet(tag, tag, "en", pairs, [line.upper() for line in REFERENCES], REFERENCES)
    for tag, pairs in (("fr", 90), ("de", 80))
]
GOOD = [line.replace("four", "five") for line in REFERENCES]
POOR = [line.replace("sentence", "word") for line in REFERENCES]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def compare(run, lines=(), baselines=None, of_baselines=(), **others):
    """Scores the run with GOOD, and each other run with its lines."""
    systems = open_systems(run, TESTS, Others(**others), baselines)
    rest = iter(lines)

    def translated(system):
        is_baseline = system in systems.baselines
        own = GOOD if system is systems.main else of_baselines if is_baseline else next(rest, None)
        directions = [(test.source, test.target) for test in system.tests]
        return dataclasses.replace(system, lines=dict.fromkeys(directions, own))

    return scored(systems.each(translated))


def test_a_system_against_itself_is_zero_everywhere(tmp_path, run):
    for tag in ("fr", "de"):
        make_run(tmp_path / "baselines" / tag, [tag])
    systems = compare(run, [GOOD], tmp_path / "baselines", GOOD, workdirs=[run.path])
    assert [system.name for system in systems.compared] == ["run", "run (2)"]
    for system in systems.compared:
        for row in (result.as_json() for result in system.results):
            assert (row["difference"], row["difference_ci95"]) == (0.0, [0.0, 0.0])
            assert (row["delta_bleu"], row["delta_ci95"]) == (0.0, [0.0, 0.0])
            assert row["difference_adjusted_p"] == 1.0


def test_a_worse_system_has_a_difference_with_an_interval_and_its_own_gain(tmp_path, run):
    other = make_run(tmp_path / "other", ["de", "pl"])
    make_run(tmp_path / "baselines" / "de", ["de"])
    systems = compare(run, [POOR], tmp_path / "baselines", POOR, workdirs=[other.path])
    main, (worse,) = systems.main, systems.others
    (result,) = worse.results
    assert result.direction == ("de", "en")
    assert result.test.train_pairs == 80  # those of the main run, which order the languages
    assert result.difference == pytest.approx(result.bleu - main.results[1].bleu)
    low, high = result.comparison.interval
    assert low < result.difference < high <= 0
    assert (result.delta, result.delta_ci95) == (0.0, (0.0, 0.0))
    assert worse.budget.experts == 8
    together = systems.baselines_together()
    assert [(r.test.language, r.delta) for r in together.results] == [("de", None)]
    assert (together.budget.weights, together.budget.days) == (5, 1.0)


def test_published_scores_have_no_interval(tmp_path, run):
    file = tmp_path / "paper.json"
    file.write_text(json.dumps({"name": "paper", "bleu": {"fr": 30.0}, "experts": 0}))
    (tmp_path / "b.json").write_text('{"fr": 20}')
    systems = compare(run, baselines=tmp_path / "b.json", scores=[file])
    (paper,) = systems.others
    row = paper.results[0].as_json()
    assert (row["bleu"], row["chrf"], row["difference_ci95"]) == (30.0, None, None)
    assert row["difference"] == pytest.approx(30.0 - systems.main.results[0].bleu, abs=0.01)
    assert (row["delta_bleu"], row["delta_ci95"]) == (10.0, None)
    assert (paper.run, paper.is_dense) == (None, True)
    assert systems.baselines_together().budget == Budget()


def cautions_of(run, signature="v", **others):
    systems = open_systems(run, TESTS, Others(**others))
    return {c.name: c for c in comparison.cautions(systems, {}, signature)}


def test_other_vocabularies_and_another_corpus_are_alarms(tmp_path, run):
    assert cautions_of(run, workdirs=[make_run(tmp_path / "same").path]) == {}
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
    row["text_digest"] = text_digest(TESTS[0])
    systems = [{"name": "report", "languages": [row]}]
    of_report.write_text(json.dumps({"signature": {"bleu": "old"}, "systems": systems}))
    cautions = cautions_of(run, scores=[plain, of_report])
    assert {name: caution.is_alarm for name, caution in cautions.items()} == {
        "test text of plain": False,
        "signature of report": True,
    }
    assert cautions_of(run, "old", scores=[of_report]) == {}


def test_the_table_of_tokens_marks_runs_with_other_vocabularies(tmp_path, run):
    other = make_run(tmp_path / "other", files=dict.fromkeys(run.identity(), "1" * 64))
    systems = [System("run", run=run), System("other", run=other), System("paper")]
    request = Request(others=Others(cross_entropies=[4.5, 3.5]))
    assert convergence_section(evaluation_of(*systems, request=request)) is None
    for folder, number in ((run, 70), (other, 7e6)):
        write_metrics(folder, [{"step": 1, "nll": 4.0, "tokens": number}])
    section = convergence_section(evaluation_of(*systems, request=request))
    assert section.data["tokens"] == {"run": [70.0, None], "other": [7e6, None]}
    assert section.data["other_vocabularies"] == ["other"]
    cells = "<tr><th>other *</th><td>7.0\u202fmillion</td><td>not reached</td><td>4</td></tr>"
    assert cells in section.html
    assert "of the training batches" in section.html


def test_runs_that_differ_in_their_seeds_have_a_mean_and_an_interval_over_runs(tmp_path, run):
    config = run.config.read_text()
    others = [
        make_run(tmp_path / name, config=config + f"Train.seed = {n}\n").path
        for n, name in enumerate("ab", 2)
    ]
    others.append(make_run(tmp_path / "wide", config=config + "Model.heads = 8\n").path)
    systems = compare(run, [POOR, GOOD, POOR], workdirs=others)
    main, a, b, wide = systems.compared
    section = comparison.seeds_section(evaluation_of(main, a, b, wide))
    assert section.data["runs"] == ["run", "a", "b"]
    values = [system.average()["bleu"] for system in (main, a, b)]
    assert section.data["bleu"] == pytest.approx(sum(values) / 3, abs=0.01)
    low, high = section.data["bleu_ci95"]
    # Student's interval of three values has 4.303 standard errors on each side.
    assert high - low == pytest.approx(2 * 4.303 * np.std(values, ddof=1) / 3**0.5, abs=0.02)
    assert section.notes[0].startswith("3 runs differ only in their seeds: BLEU ")
    assert comparison.seeds_section(evaluation_of(main, a)).data["bleu_ci95"] is None
    assert comparison.seeds_section(evaluation_of(main, wide)) is None


P_VALUES = (0.001, 0.02, 0.04, 0.9)


def compared_with(main: System, name: str) -> System:
    """Returns a run whose four directions differ from the main run with these p-values."""
    results = []
    for number, (difference, p) in enumerate(zip((2.0, -1.0, 0.5, 0.1), P_VALUES, strict=True)):
        compared = Comparison(difference, (-1, 3), p)
        of_main = main.results[number]
        results.append(
            result_of(number, of_main.bleu + difference, main=of_main, comparison=compared)
        )
    return dataclasses.replace(main, name=name, results=adjusted(results))


def test_differences_are_counted_after_the_p_values_of_a_run_are_adjusted_together():
    main = system_of("A", dict.fromkeys(range(4), 24))
    other = compared_with(main, "<B>")
    values = [result.adjusted_p for result in other.results]
    assert values == pytest.approx(adjusted_p_values(P_VALUES))
    assert values == pytest.approx([0.004, 0.04, 0.16 / 3, 0.9])
    section = comparison.differences_section(evaluation_of(main, other))
    # 0.02 is below 0.05 after the adjustment, and 0.04 is not.
    assert section.data == {
        "<B>": {"directions": 4, "better": 1, "worse": 1, "false_discovery_rate": 0.05}
    }
    (note,) = section.notes
    assert note.startswith(
        "<B>: +0.4 BLEU (-1.6 to +2.4) on average compared with A; significantly better in 1 of 4 "
        "directions, and significantly worse in 1 (approximate randomization, "
    )
    assert "&lt;B&gt;" in section.html
    assert "<B>" not in section.html
    assert section.html.count("<td>yes</td>") == 2
