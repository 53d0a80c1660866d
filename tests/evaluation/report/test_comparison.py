"""Gains over the baselines, other runs beside the main run, and scores by length."""

import dataclasses

import pytest
from sacrebleu.metrics import BLEU

from gshard_nmt.evaluation import metrics, translations
from gshard_nmt.evaluation.opening import open_systems
from gshard_nmt.evaluation.report import comparison
from gshard_nmt.evaluation.significance import Comparison
from gshard_nmt.evaluation.systems import Budget, System, Systems, adjusted, score_lines, scored
from tests.evaluation.made_systems import made_test, result_of, system_of
from tests.evaluation.run_folders import make_run
from tests.evaluation.sentences import noisy, sentences

TEXT = [f"this is sentence number {n} of the test" for n in ("one", "two", "three", "four")]
TESTS = [
    translations.TestSet(tag, tag, "en", pairs, [line.upper() for line in TEXT], TEXT)
    for tag, pairs in (("fr", 90), ("de", 80))
]
GOOD = [line.replace("four", "five") for line in TEXT]
POOR = [line.replace("sentence", "word") for line in TEXT]


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def compare(run, lines=(), baselines=None, of_baselines=(), others=()):
    """Scores the run with GOOD, and each other run with its lines."""
    systems = open_systems(run, TESTS, others, baselines=baselines)
    rest = iter(lines)

    def translated(system):
        is_baseline = system in systems.baselines
        own = GOOD if system is systems.main else of_baselines if is_baseline else next(rest, None)
        directions = [(test.source, test.target) for test in system.tests]
        return dataclasses.replace(system, lines=dict.fromkeys(directions, own))

    return scored(systems.each(translated), (), lambda: None)


def test_a_system_against_itself_is_zero_everywhere(tmp_path, run):
    for tag in ("fr", "de"):
        make_run(tmp_path / "baselines" / tag, [tag])
    systems = compare(run, [GOOD], tmp_path / "baselines", GOOD, others=[run.path])
    assert [system.name for system in systems.compared] == ["run", "run (2)"]
    for system in systems.compared:
        for row in (result.as_json() for result in system.results):
            assert (row["difference"], row["difference_ci95"]) == (0.0, [0.0, 0.0])
            assert (row["delta_bleu"], row["delta_ci95"]) == (0.0, [0.0, 0.0])
            assert row["difference_adjusted_p"] == 1.0


def test_a_worse_system_has_a_difference_with_an_interval_and_its_own_gain(tmp_path, run):
    other = make_run(tmp_path / "other", ["de", "pl"])
    make_run(tmp_path / "baselines" / "de", ["de"])
    systems = compare(run, [POOR], tmp_path / "baselines", POOR, others=[other.path])
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


def test_known_scores_of_baselines_have_no_interval(tmp_path, run):
    (tmp_path / "b.json").write_text('{"fr": 20}')
    systems = compare(run, baselines=tmp_path / "b.json")
    french, german = (result.as_json() for result in systems.main.results)
    assert (french["baseline_bleu"], french["delta_ci95"]) == (20.0, None)
    assert (german["baseline_bleu"], german["delta_bleu"]) == (None, None)
    assert systems.baselines_together().budget == Budget()
    assert comparison.significance_section(systems.main) is None


def test_another_corpus_is_a_caution(tmp_path, run):
    same, other = make_run(tmp_path / "same"), make_run(tmp_path / "b", corpus_fingerprint="xyz")
    few = make_run(tmp_path / "few", ["fr"])
    make_run(tmp_path / "baselines" / "fr", ["fr"], corpus_fingerprint="xyz")
    make_run(tmp_path / "baselines" / "de", ["de"])
    (name, text), others, (of_baseline, _) = comparison.cautions(
        open_systems(run, TESTS, [same.path, other.path, few.path], (), tmp_path / "baselines")
    )
    assert (name, of_baseline) == ("training text of b", "training text of fr")
    assert others == ("directions of few", "few has other directions than the main run.")
    assert "the fingerprints of the corpora are xyz and 0123456789abcdef." in text


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
    assert values == pytest.approx([0.004, 0.04, 0.16 / 3, 0.9])
    section = comparison.differences_section(Systems(main, [other]))
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


def test_all_references_and_metrics_count():
    lines = sentences(0)
    test = translations.TestSet("fr", "fr", "en", 9, lines, lines, (noisy(lines, 1, 0.2),))
    ours, theirs = noisy(lines, 2, 0.1), noisy(lines, 3, 0.6)
    baseline = score_lines(test, theirs)
    result = score_lines(test, ours, ("chrf++", "ter"), baseline)
    assert result.scores == metrics.scores(ours, test.all_references, "en", ("chrf++", "ter"))
    assert list(result.others) == ["chrfpp", "ter"]
    assert result.gain.delta == pytest.approx(result.delta)
    assert result.delta_ci95[0] < result.delta < result.delta_ci95[1]
    section = comparison.significance_section(System("a", results=[result]))
    assert section.data["bleu"]["fr-en"]["significant"] is True
    assert "BLEU: 1 of 1 directions are significantly better" in section.html
    again = score_lines(test, theirs, (), baseline)
    section = comparison.significance_section(System("a", results=[again]))
    row = section.data["bleu"]["fr-en"]
    assert (row["delta"], row["ci95"], row["p"]) == (0, [0, 0], 1)


def test_a_gain_is_significant_among_all_directions_or_not_at_all():
    def rows(*p_values):
        results = [
            result_of(n, 30.0, gain=Comparison(10.0, (9.0, 11.0), p))
            for n, p in enumerate(p_values)
        ]
        return comparison.significance_section(System("a", results=results)).data["bleu"]

    assert rows(0.04)["l0-en"]["significant"] is True
    many = rows(0.04, *[0.9] * 9)["l0-en"]
    assert many["significant"] is False
    assert many["adjusted_p"] == pytest.approx(0.4)


REFERENCES = [
    "the file was not found",
    "a folder is here today",
    "open the file again in this folder",
    "this is the last of the long lines here",
    "no",
    "the file was not found in this folder today",
]
SOURCES = ["a b c", "a b c d", "a b c d e", " a  b c d e f ", "", "a b c d e f g"]


def test_every_bucket_of_lengths_has_the_scores_of_its_sentences(monkeypatch):
    system = [line.replace("folder", "place") for line in REFERENCES]
    baseline = [line.replace("file", "thing") for line in system]
    test = dataclasses.replace(made_test("fr"), sources=SOURCES, references=REFERENCES)
    result = score_lines(test, system, (), score_lines(test, baseline))
    monkeypatch.setattr(comparison, "EDGES", (4, 6, 20))
    section = comparison.length_section(System("a", results=[result]))
    assert "<th>0-3</th><th>4-5</th><th>6-19</th><th>20+</th>" in section.html
    *buckets, empty = section.data["directions"]["fr-en"]
    for bucket, places in zip(buckets, [(0, 4), (1, 2), (3, 5)], strict=True):
        assert bucket["sentences"] == 2
        references = [[REFERENCES[i] for i in places]]
        ours, theirs = ([lines[i] for i in places] for lines in (system, baseline))
        assert bucket["bleu"] == round(BLEU().corpus_score(ours, references).score, 2)
        assert bucket["baseline_bleu"] == round(BLEU().corpus_score(theirs, references).score, 2)
    assert (empty["start"], empty["end"], empty["sentences"], empty["bleu"]) == (20, None, 0, None)
    assert section.html.endswith("<td></td></tr>\n</tbody></table></div>")
    assert comparison.length("文件 没有找到", "zh-Hant") == 6
    assert comparison.length("le fichier  manque ", "fr") == 3
