"""JSON files of a run folder: what fits a shape, and how the error names what does not."""

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.run import json_file
from gshard_nmt.run.json_file import Table

SHAPE = {"name": str, "size": int, "rate": float, "parts": [{"id": int}], "by_tag": Table([str])}


def read(tmp_path, text: str):
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    return json_file.read(tmp_path / "a.json", SHAPE, "Make it again.")


def test_what_fits_is_read_as_it_is_and_other_keys_are_free(tmp_path):
    text = '{"name": "ü", "size": 0, "rate": 1, "parts": [{"id": 1}], "by_tag": {"x": ["y"]}, "z": [1]}'
    assert read(tmp_path, text) == {
        "name": "ü",
        "size": 0,
        "rate": 1,
        "parts": [{"id": 1}],
        "by_tag": {"x": ["y"]},
        "z": [1],
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"name": 1}', "name is 1; it must be a string"),
        ('{"size": -1}', "size is -1; it must be a whole number of 0 or more"),
        ('{"size": 1.0}', "size is 1.0; it must be a whole number of 0 or more"),
        ('{"size": true}', "size is true; it must be a whole number of 0 or more"),
        ('{"rate": null}', "rate is null; it must be a number"),
        ('{"parts": {}}', "parts is {}; it must be a list"),
        ('{"parts": [{"id": 1}, {"id": "x"}]}', 'parts[1].id is "x"; it must be a whole number'),
        ('{"by_tag": {"fr": [1]}}', "by_tag['fr'][0] is 1; it must be a string"),
        (f'{{"name": [{"1, " * 50}1]}}', "name is [1, 1, 1,"),
        ("nonsense", "it is not JSON (Expecting value"),
        ("5", "it does not hold a JSON object"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(tmp_path, text, problem):
    with pytest.raises(UserError) as raised:
        read(tmp_path, text)
    message = str(raised.value)
    assert message.startswith(f"{tmp_path / 'a.json'} is damaged: {problem}")
    assert message.endswith(". Make it again.")
    assert len(message) < 400


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "a.json").write_bytes(b'{"name": "\xff\xfe"}')
    with pytest.raises(UserError, match="is damaged: it is not JSON"):
        json_file.read(tmp_path / "a.json", SHAPE, "Make it again.")


def test_a_missing_key_is_an_error_only_when_it_is_looked_up(tmp_path):
    record = read(tmp_path, '{"parts": [{}]}')
    assert record.get("name", "none") == "none"
    assert "name" not in record
    with pytest.raises(UserError, match=r"a\.json is damaged: name is missing\. Make it again\."):
        _ = record["name"]
    with pytest.raises(UserError, match=r"a\.json is damaged: parts\[0\]\.id is missing"):
        _ = record["parts"][0]["id"]
