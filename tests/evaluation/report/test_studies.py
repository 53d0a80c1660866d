"""The studies of a direction agree with sacreBLEU, and one system against itself differs nowhere."""

import dataclasses

import pytest
from sacrebleu.metrics import BLEU, CHRF

from gshard_nmt.evaluation.metrics import metrics
from gshard_nmt.evaluation.metrics.metrics import Measures
from gshard_nmt.evaluation.metrics.significance import Comparison
from gshard_nmt.evaluation.report import studies
from gshard_nmt.evaluation.report.report import Options, Request, signatures_of
from gshard_nmt.evaluation.systems.scoring import score_lines
from gshard_nmt.evaluation.systems.systems import System
from gshard_nmt.evaluation.texts import translations
from tests.evaluation.made_systems import evaluation_of, made_test, result_of
from tests.evaluation.sentences import noisy, sentences


def evaluation(results, edges=(10, 20)):
    request = Request(options=Options(length_edges=edges))
    return evaluation_of(System("a", results=results), request=request)


def test_all_references_and_metrics_count():
    lines = sentences(0)
    test = translations.TestSet("fr", "fr", "en", 9, lines, lines, (noisy(lines, 1, 0.2),))
    ours, theirs = noisy(lines, 2, 0.1), noisy(lines, 3, 0.6)
    measures = Measures(("chrf++", "ter"))
    baseline = score_lines(test, theirs)
    result = score_lines(test, ours, measures, baseline)
    assert result.scores == metrics.scores(ours, test.all_references, "en", measures)
    assert list(result.others) == ["chrfpp", "ter"]
    assert result.gains["bleu"].delta == pytest.approx(result.delta)
    assert result.delta_ci95[0] < result.delta < result.delta_ci95[1]
    assert "nrefs:2" in signatures_of([result])["ter"]
    section = studies.significance_section(evaluation([result]))
    assert section.data["bleu"]["fr-en"]["significant"] is True
    assert "BLEU: 1 of 1 directions are significantly better" in section.html
    again = score_lines(test, theirs, None, baseline)
    section = studies.significance_section(evaluation([again]))
    expected = {"delta": 0.0, "ci95": [0.0, 0.0], "p": 1.0, "adjusted_p": 1.0, "significant": False}
    assert section.data["bleu"]["fr-en"] == section.data["chrf"]["fr-en"] == expected
    assert studies.significance_section(evaluation([baseline])) is None


def test_many_directions_need_stronger_evidence():
    def rows(*p_values):
        results = [
            result_of(
                n, 30.0, gains=dict.fromkeys(("bleu", "chrf"), Comparison(1.0, (0.1, 1.9), p))
            )
            for n, p in enumerate(p_values)
        ]
        return studies.significance_section(evaluation(results)).data["bleu"]

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


def test_every_bucket_of_lengths_has_the_scores_of_its_sentences():
    system = [line.replace("folder", "place") for line in REFERENCES]
    baseline = [line.replace("file", "thing") for line in system]
    test = dataclasses.replace(made_test("fr"), sources=SOURCES, references=REFERENCES)
    result = score_lines(test, system, None, score_lines(test, baseline))
    section = studies.length_section(evaluation([result], (4, 6, 20)))
    assert "<th>0-3</th><th>4-5</th><th>6-19</th><th>20+</th>" in section.html
    *buckets, empty = section.data["directions"]["fr-en"]
    for bucket, places in zip(buckets, [(0, 4), (1, 2), (3, 5)], strict=True):
        assert bucket["sentences"] == 2
        references = [[REFERENCES[i] for i in places]]
        ours, theirs = ([lines[i] for i in places] for lines in (system, baseline))
        assert bucket["bleu"] == round(BLEU().corpus_score(ours, references).score, 2)
        assert bucket["chrf"] == round(CHRF().corpus_score(ours, references).score, 2)
        assert bucket["baseline_bleu"] == round(BLEU().corpus_score(theirs, references).score, 2)
    assert (empty["start"], empty["end"], empty["sentences"], empty["bleu"]) == (20, None, 0, None)
    assert section.html.endswith("<td></td></tr>\n</tbody></table></div>")
    assert studies.length("文件 没有找到", "zh-Hant") == 6
    assert studies.length("le fichier  manque ", "fr") == 3
