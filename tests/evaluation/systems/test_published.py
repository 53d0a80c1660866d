import json

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import report
from gshard_nmt.evaluation.report.tables import systems_section
from gshard_nmt.evaluation.systems import published
from gshard_nmt.evaluation.systems.systems import Budget
from tests.evaluation.made_systems import system_of


def test_scores_and_costs_are_read(tmp_path):
    file = tmp_path / "paper.json"
    content = {"name": "MoE", "bleu": {"fr": 44.3}, "weights": 600, "device_years": 22.4}
    file.write_text(json.dumps(content | {"sentences": {"fr": 10}}))
    scores = published.read(file)
    assert (scores.name, scores.bleu, scores.sentences) == ("MoE", {"fr": 44.3}, {"fr": 10})
    assert scores.budget == Budget(weights=600, device_years=22.4)
    assert (scores.signature, scores.text_digests) == ("", {})


def test_the_first_system_of_a_report_is_read(tmp_path):
    main = system_of("a", {0: 30.5, 1: 20.0})
    section = systems_section([main, system_of("b", {0: 1.0})], None)
    rows = [report.LanguageResult("l0", 5, 50, 30.5, 40.0)]
    signatures = {"bleu": "v:1", "chrf": "v:1"}
    content = report.as_json(report.Report(rows, signatures, [], "t", [section]))
    (tmp_path / "bleu.json").write_text(json.dumps(content))
    scores = published.read(tmp_path / "bleu.json")
    assert (scores.name, scores.signature) == ("a", "v:1")
    assert scores.bleu == {"l0-en": 30.5, "l1-en": 20.0}
    assert scores.sentences == {"l0-en": 50, "l1-en": 50}
    assert scores.budget == main.budget


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"bleu": {"fr": 1}}', '{"name": "a", "bleu": {"fr": 101}}'),
        *('{"name": "a", "bleu": [1]}', '{"name": "a", "bleu": {}, "wieghts": 3}'),
        *('{"systems": []}', '{"signature": {"bleu": "v"}, "systems": [{"name": "a"}]}'),
    ],
)
def test_other_content_is_an_error(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"x.json is not JSON like \{"):
        published.read(tmp_path / "x.json")


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(UserError, match="there is no such file; give a JSON file"):
        published.read(tmp_path / "x.json")
