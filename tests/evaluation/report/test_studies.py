"""The studies of a direction agree with each other, and one system against itself differs nowhere."""

import pytest

from gshard_nmt.evaluation.metrics import metrics
from gshard_nmt.evaluation.metrics.metrics import Measures
from gshard_nmt.evaluation.metrics.significance import Comparison
from gshard_nmt.evaluation.report import studies
from gshard_nmt.evaluation.report.studies import Options
from gshard_nmt.evaluation.texts import translations
from tests.evaluation.sentences import noisy, sentences


@pytest.fixture(scope="module")
def test_set():
    lines = sentences(0)
    return translations.TestSet("fr", "fr", "en", 9, lines, lines, (noisy(lines, 1, 0.2),))


def test_all_references_and_metrics_count(test_set):
    ours, theirs = noisy(test_set.sources, 2, 0.1), noisy(test_set.sources, 3, 0.6)
    options = Options(Measures(("chrf++", "ter")), (5, 8))
    studied = studies.study(test_set, ours, theirs, options)
    expected = metrics.scores(ours, test_set.all_references, "en", options.measures)
    assert studied.scores == expected
    assert list(studied.others) == ["chrfpp", "ter"]
    baseline = metrics.scores(theirs, test_set.all_references, "en")["bleu"].value
    assert studied.baseline_bleu == baseline
    delta = expected["bleu"].value - baseline
    assert studied.comparisons["bleu"].delta == pytest.approx(delta)
    assert studied.interval[0] < delta < studied.interval[1]
    assert [bucket.name for bucket in studied.buckets] == ["0-4", "5-7", "8+"]
    assert "nrefs:2" in studies.signatures({("fr", "en"): studied})["ter"]
    significance, lengths = studies.sections({("fr", "en"): studied}, options)
    assert significance.data["bleu"]["fr-en"]["significant"] is True
    assert "BLEU: 1 of 1 directions are significantly better" in significance.html
    assert list(lengths.data["directions"]) == ["fr-en"]


def test_a_system_against_itself_is_zero_everywhere_and_never_significant(test_set):
    ours = noisy(test_set.sources, 2, 0.3)
    studied = {(tag, "en"): studies.study(test_set, ours, list(ours)) for tag in ("fr", "de")}
    significance, lengths = studies.sections(studied)
    for key in ("bleu", "chrf"):
        for row in significance.data[key].values():
            expected = {"delta": 0.0, "ci95": [0.0, 0.0], "p": 1.0, "adjusted_p": 1.0}
            assert row == expected | {"significant": False}
    assert "BLEU: 0 of 2 directions are significantly better" in significance.html
    for buckets in lengths.data["directions"].values():
        assert all(bucket["bleu"] == bucket["baseline_bleu"] for bucket in buckets)


def test_many_directions_need_stronger_evidence():
    def comparisons(p_value):
        return {"bleu": Comparison(1.0, (0.1, 1.9), p_value)}

    alone = studies.significance_section({"fr-en": comparisons(0.04)})
    assert alone.data["bleu"]["fr-en"]["significant"] is True
    others = {f"l{n}-en": comparisons(0.9) for n in range(9)}
    many = studies.significance_section({"fr-en": comparisons(0.04), **others})
    assert many.data["bleu"]["fr-en"]["significant"] is False
    assert many.data["bleu"]["fr-en"]["adjusted_p"] == pytest.approx(0.4)


def test_without_a_baseline_there_is_no_section_on_significance(test_set):
    studied = studies.study(test_set, test_set.sources)
    assert studied.baseline_bleu is studied.interval is None
    (section,) = studies.sections({("fr", "en"): studied})
    assert section.name == "length_buckets"
