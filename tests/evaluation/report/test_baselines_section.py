"""The section about baselines: every budget and every end is named, and the kind is said in words."""

import json

import pytest

from gshard_nmt.evaluation.report.baselines_section import kind_text, read, section

RECORD = {
    "kind": "converged",
    "language": "fr",
    "size": "small",
    "dropout": 0.3,
    "vocabulary": "shared",
    "ended": "patience",
    "key": "0123456789",
    "weights": 2_345_678,
    "steps": 1400,
    "tokens": 1_234_567,
    "seconds": 312.0,
    "train_pairs": 9,
    "dev_bleu": 21.34,
    "limits": {"steps": 2000, "tokens": 0, "patience": 5, "minutes": 0},
}


def folder(path, **changes):
    path.mkdir()
    record = RECORD | changes
    (path / "baseline.json").write_text(json.dumps(record))
    return path


def test_each_baseline_has_a_row_with_its_budget_and_its_end(tmp_path):
    runs = {
        "fr": folder(tmp_path / "fr"),
        "de": folder(tmp_path / "de", language="de", kind="budget", ended="tokens", dropout=None),
        "it": tmp_path / "it",  # made by an earlier version
    }
    part = section(runs)
    assert part.name == "baselines"
    for cell in ("2,345,678", "1,234,567", "1,400", "21.3", "dev BLEU did not improve", "0.3"):
        assert f"<td>{cell}</td>" in part.html
    assert "<td>limit of tokens</td>" in part.html
    header, *rows = part.html.split("<tr>")[1:]
    assert "<th>ended by</th>" in header
    assert {row.count("<td>") + row.count("<th>") for row in (header, *rows)} == {10}
    assert "<td>of the config</td>" in part.html
    assert part.data["kind"] in part.html
    french, german = part.data["languages"]
    assert (french["ended"], german["ended"]) == ("patience", "tokens")
    assert part.data["kind"] == (
        "1 of 3 baselines were trained until dev BLEU did not improve; 1 of 3 baselines "
        "saw the same number of tokens of their language as the multilingual model, and are "
        "not converged; of 1 it is not recorded how they were trained."
    )


def test_a_baseline_that_ended_at_a_limit_does_not_count_as_converged():
    records = {"fr": RECORD, "de": RECORD | {"ended": "minutes"}}
    assert kind_text(records, 2) == (
        "1 of 2 baselines were trained until dev BLEU did not improve; 1 ended at a limit before."
    )


def test_without_records_there_is_no_section(tmp_path):
    assert section({"fr": tmp_path}) is None
    assert read({"fr": tmp_path}) == {}
    assert kind_text({}, 4) == "It is not recorded how the baselines were trained."


@pytest.mark.parametrize("text", ["<b>fr</b>", "a&b"])
def test_texts_are_escaped(tmp_path, text):
    part = section({text: folder(tmp_path / "fr", size=text)})
    assert text not in part.html
