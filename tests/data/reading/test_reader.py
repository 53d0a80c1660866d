"""Every format of the same sentence pairs gives the same rows."""

import gzip
import json
import re
from xml.sax.saxutils import escape

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.reading.reader import read_blocks
from gshard_nmt.data.reading.rows import SentencePair
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.errors import UserError

# Text that every format can hold: XML has no control characters, and columns have no tabs.
TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff\ufffe\uffff"),
    max_size=12,
).map(lambda text: re.sub(r"\s", " ", text))
SCORES = st.floats(-1e6, 1e6)


def unit(row: SentencePair) -> str:
    score = f"<prop type='score'>{row.score}</prop>"
    sides = "".join(
        f"<tuv xml:lang='{language}'><seg>{escape(text)}</seg></tuv>"
        for language, text in (("EN-US", row.target), ("fr", row.source), ("de", "anders"))
    )
    return f"<tu>{score}{sides}</tu>\n"


def contents(rows: list[SentencePair]) -> dict[str, str]:
    """Returns the files of each format: name to text."""
    return {
        "train.a.fr": "".join(f"{row.source}\n" for row in rows),
        "train.a.en": "".join(f"{row.target}\r\n" for row in rows),
        "train.a.scores": "".join(f"{row.score}\n" for row in rows),
        "train.b.tsv": "a\ten\tscore\tfr\n"
        + "".join(f"x\t{row.target}\t{row.score}\t{row.source}\n" for row in rows),
        "train.c.jsonl": "".join(
            json.dumps({"translation": {"fr": row.source, "en": row.target}, "score": row.score})
            + "\n"
            for row in rows
        ),
        "train.d.jsonl": "".join(
            json.dumps({"source": row.source, "target": row.target, "score": str(row.score)}) + "\n"
            for row in rows
        ),
        "train.e.tmx": f"<tmx><body>{''.join(map(unit, rows))}</body></tmx>",
    }


def rows_of(text):
    return [row for block in read_blocks(text) for row in block]


@settings(max_examples=10, deadline=None)
@given(rows=st.lists(st.builds(SentencePair, TEXTS, TEXTS, SCORES), min_size=1, max_size=6))
def test_every_format_gives_the_same_rows(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("corpus") / "fr-en"
    folder.mkdir()
    for number, (name, text) in enumerate(contents(rows).items()):
        if number % 3 == 0:
            (folder / name).write_bytes(text.encode())
        elif number % 3 == 1:
            (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (folder / f"{name}.zst").write_bytes(zstandard.compress(text.encode()))
    (pair,) = find_pairs(folder.parent)
    inputs = pair.inputs("train")
    assert [text.format for text in inputs] == ["aligned", "tsv", "jsonl", "jsonl", "tmx"]
    for text in inputs:
        assert rows_of(text) == rows, text.name
        turned = [SentencePair(row.target, row.source, row.score) for row in rows]
        assert rows_of(text.reversed()) == turned, text.name
        assert text.reversed().reversed() == text


@pytest.mark.parametrize("name", ["train.tsv", "train.jsonl", "train.fr"])
def test_an_empty_file_has_no_rows(tmp_path, name):
    (tmp_path / "fr-en").mkdir()
    (tmp_path / "fr-en" / name).write_bytes(b"")
    if name == "train.fr":
        (tmp_path / "fr-en" / "train.en").write_bytes(b"")
    (pair,) = find_pairs(tmp_path)
    assert [rows_of(text) for text in pair.inputs("train")] == [[]]


def test_half_of_a_surrogate_pair_becomes_a_replacement_character(tmp_path):
    text = '{"fr": "Cassé \\ud83d", "en": "\\ude00 x"}\n{"fr": "b", "en": "\\ud83d\\ude00"}\n'
    assert json_rows(tmp_path, text) == [
        ("Cassé \ufffd", "\ufffd x", None),
        ("b", "\N{GRINNING FACE}", None),
    ]


def json_rows(tmp_path, text, name="fr-en"):
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.jsonl").write_text(text)
    (pair,) = find_pairs(tmp_path)
    return rows_of(*pair.inputs("train"))


@pytest.mark.parametrize(
    "line",
    [
        '{"translation": {"zh_cn": "a\\nb", "en": "c"}, "score": null}',
        '{"zh": "a b", "en": "c"}',
        '{"target": "c", "source": "a b", "id": 7}',
    ],
)
def test_the_keys_of_json_lines_are_codes_or_sides(tmp_path, line):
    assert json_rows(tmp_path, f"{line}\n\n  \n{line}", "zh-CN-en") == [("a b", "c", None)] * 2


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not JSON"),
        ("[1]", "has no text in zh-CN and en"),
        ('{"fr": "a", "en": "b"}', "has no text in zh-CN and en"),
        ('{"zh": null, "en": "b"}', "has no text in zh-CN and en"),
        ('{"zh": ["a"], "en": ["b"]}', "has no text in zh-CN and en"),
        ('{"translation": "a"}', "has no text in zh-CN and en"),
        ('{"zh": "a", "en": "b", "score": "high"}', "has the score 'high'"),
    ],
)
def test_json_lines_that_are_wrong(tmp_path, line, words):
    with pytest.raises(UserError, match=f"train.jsonl, line 2 {words}"):
        json_rows(tmp_path, f'{{"zh": "a", "en": "b"}}\n{line}\n', "zh-CN-en")


def aligned_rows(folder):
    (pair,) = find_pairs(folder.parent)
    return rows_of(*pair.inputs("train"))


def test_the_scores_of_aligned_files_are_a_third_file_that_must_fit(tmp_path):
    folder = tmp_path / "fr-en"
    folder.mkdir()
    (folder / "Europarl.en-fr.fr").write_text("un\ndeux\n")
    (folder / "Europarl.en-fr.en").write_text("one\ntwo\n")
    assert aligned_rows(folder) == [("un", "one", None), ("deux", "two", None)]
    scores = folder / "Europarl.en-fr.scores"
    scores.write_text("1.25\n0.5\n")
    assert aligned_rows(folder) == [("un", "one", 1.25), ("deux", "two", 0.5)]
    scores.write_text("1.25\nlow\n")
    with pytest.raises(UserError, match=f"{scores}, line 2 has the score 'low'"):
        aligned_rows(folder)
    scores.write_text("1.25\n")
    with pytest.raises(UserError, match=f"has 2 lines, {scores} has 1"):
        aligned_rows(folder)
