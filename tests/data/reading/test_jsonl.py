"""Objects in lines: the keys of the languages, and lines that are wrong."""

import pytest

from gshard_nmt.data.reading.jsonl import read_jsonl
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.errors import UserError


def rows(tmp_path, text, name="zh-CN-en"):
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.jsonl").write_text(text)
    (pair,) = find_pairs(tmp_path)
    (objects,) = pair.inputs("train")
    return [row for block in read_jsonl(objects) for row in block]


@pytest.mark.parametrize(
    "line",
    [
        '{"translation": {"zh_cn": "a\\nb", "en": "c"}, "score": null}',
        '{"zh": "a b", "en": "c"}',
        '{"target": "c", "source": "a b", "id": 7}',
    ],
)
def test_the_keys_are_codes_or_sides(tmp_path, line):
    assert rows(tmp_path, f"{line}\n\n  \n{line}") == [("a b", "c", None)] * 2


def test_keys_may_change_from_line_to_line(tmp_path):
    text = '{"zh": "a", "en": "b"}\n{"source": "c", "target": "d", "score": 1}\n'
    assert rows(tmp_path, text) == [("a", "b", None), ("c", "d", 1.0)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"fr": "a", "en": "b"}', "has no text in zh-CN and en"),
        ('{"zh": null, "en": "b"}', "has no text in zh-CN and en"),
        ('{"translation": "a"}', "has no text in zh-CN and en"),
        ('{"zh": "a", "en": "b", "score": "high"}', "has the score 'high'"),
    ],
)
def test_lines_that_are_wrong(tmp_path, line, words):
    with pytest.raises(UserError, match=f"train.jsonl, line 2 {words}"):
        rows(tmp_path, f'{{"zh": "a", "en": "b"}}\n{line}\n')
