"""Each bucket has the score that sacreBLEU gives to its sentences."""

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from gshard_nmt.evaluation.metrics import significance
from gshard_nmt.evaluation.report import length_buckets

REFERENCES = [
    *["the file was not found", "a folder is here today", "open the file again in this folder"],
    *[
        "this is the last of the long lines here",
        "no",
        "the file was not found in this folder today",
    ],
]
SYSTEM = [line.replace("folder", "place") for line in REFERENCES]
BASELINE = [line.replace("file", "thing") for line in SYSTEM]
SOURCES = ["a b c", "a b c d", "a b c d e", " a  b c d e f ", "", "a b c d e f g"]


def statistics(lines):
    return {
        key: significance.statistics(lines, [REFERENCES], "en", key) for key in ("bleu", "chrf")
    }


def test_every_bucket_has_the_scores_of_its_sentences():
    buckets = length_buckets.buckets(
        SOURCES, "fr", statistics(SYSTEM), statistics(BASELINE), (4, 6, 20)
    )
    assert [bucket.name for bucket in buckets] == ["0-3", "4-5", "6-19", "20+"]
    assert [bucket.sentences for bucket in buckets] == [2, 2, 2, 0]
    for bucket, places in zip(buckets, [(0, 4), (1, 2), (3, 5)], strict=False):
        references = [[REFERENCES[i] for i in places]]
        system, baseline = ([lines[i] for i in places] for lines in (SYSTEM, BASELINE))
        assert bucket.bleu == pytest.approx(BLEU().corpus_score(system, references).score)
        assert bucket.chrf == pytest.approx(CHRF().corpus_score(system, references).score)
        expected = BLEU().corpus_score(baseline, references).score
        assert bucket.baseline_bleu == pytest.approx(expected)
    empty = buckets[-1]
    assert empty.bleu is empty.chrf is empty.baseline_bleu is None


def test_languages_without_spaces_are_counted_in_characters():
    assert length_buckets.length("文件 没有找到", "zh-Hant") == 6
    assert length_buckets.length("le fichier  manque ", "fr") == 3


def test_the_section_shows_scores_gains_and_counts():
    rows = {key: np.concatenate([value] * 200) for key, value in statistics(SYSTEM).items()}
    buckets = length_buckets.buckets(SOURCES * 200, "fr", rows, rows, (6, 20))
    section = length_buckets.section({"fr-en": buckets}, (6, 20))
    assert "<th>0-5</th><th>6-19</th><th>20+</th>" in section.html
    assert f"<td>{buckets[0].bleu:.1f} (+0.0; 800)</td>" in section.html
    assert section.html.endswith("<td></td></tr>\n</tbody></table></div>")
    assert section.data["edges"] == [6, 20]
    first, _, last = section.data["directions"]["fr-en"]
    assert (first["start"], first["end"], first["sentences"]) == (0, 6, 800)
    assert first["bleu"] == round(buckets[0].bleu, 2)
    assert last["bleu"] is None
