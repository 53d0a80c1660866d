"""Which columns of a table are text, and tables that are wrong."""

import pytest

from gshard_nmt.data.reading.tsv import read_tsv
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.errors import UserError


def rows(tmp_path, text, turned=False, name="train.tsv"):
    folder = tmp_path / "fr-en"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (pair,) = find_pairs(tmp_path)
    (table,) = pair.inputs("train")
    return [row for block in read_tsv(table.reversed() if turned else table) for row in block]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("un\tone\ndeux\ttwo\n", None),
        ("0.5\tun\tone\n0.5\tdeux\ttwo\n", 0.5),
        ("un\tone\t0.5\t7\ndeux\ttwo\t0.5\t8\n", 0.5),
        ("un\t0.5\tone\ndeux\t.5\ttwo\n", 0.5),
        ("en\tfr\none\tun\ntwo\tdeux\n", None),
        ("id\tsource\ttarget\nx\tun\tone\ny\tdeux\ttwo\n", None),
        ("id\tfr\ten\n1\tun\tone\n2\tdeux\ttwo\n", None),
        ("\nun\tone\n  \ndeux\ttwo\n\n\n", None),
        ("url\tid\ten\tscore\tFR\nx\t1\tone\t0.5\tun\ny\t2\ttwo\t0.5\tdeux\n", 0.5),
    ],
)
def test_columns_of_text_and_of_scores(tmp_path, text, score):
    assert rows(tmp_path, text) == [("un", "one", score), ("deux", "two", score)]
    assert rows(tmp_path, text, turned=True) == [("one", "un", score), ("two", "deux", score)]


def test_the_fields_of_a_csv_file_may_be_in_quotes(tmp_path):
    lines = ["fr,en", '"un ""chat""\nou, deux","a ""cat"""', "", 'trois,"three"', ""]
    expected = [('un "chat" ou, deux', 'a "cat"', None), ("trois", "three", None)]
    assert rows(tmp_path, "\r\n".join(lines), name="train.csv") == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"un,one\n', r"line 1 is not CSV \(unexpected end of data\)"),
        ('a,b\n"c"d,e\n', "line 2 is not CSV"),
        ("a,b\nc\n", "line 2 has 1 column; each line must have 2"),
    ],
)
def test_csv_files_that_are_wrong(tmp_path, text, words):
    with pytest.raises(UserError, match=f"train.csv, {words}"):
        rows(tmp_path, text, name="train.csv")


def test_quotes_in_a_tsv_file_are_text(tmp_path):
    text = '"Il dit ""non"""\t"He says ""no"""\n'
    assert rows(tmp_path, text) == [('"Il dit ""non"""', '"He says ""no"""', None)]


def test_tabs_of_other_lines_do_not_move_the_columns(tmp_path):
    text = "un\tone\n" * 6000
    assert len(rows(tmp_path, text)) == 6000
    with pytest.raises(UserError, match=r"train.tsv, line 6001 has 3 columns; each line must"):
        rows(tmp_path, text + "a\tb\tc\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\tb\tc\n", "line 1 has 3 columns of text"),
        ("1\t2\t3\n", "line 1 has 0 columns of text"),
        ("a\n", "line 1 has 1 column;"),
        ("a\tb\t1\na\tb\n", "line 2 has 2 columns; each line must have 3"),
        ("a\tb\n\nc\n", "line 3 has 1 column; each line must have 2"),
        ('a\tb\n"c\td"\te\n', "line 2 has 3 columns.* a .csv file between commas or in quotes"),
        ("a\tb\t1\n" * 100 + "a\tb\tgood\n", "line 101 has the score 'good'"),
    ],
)
def test_tables_that_are_wrong(tmp_path, text, words):
    with pytest.raises(UserError, match=f"train.tsv, {words}"):
        rows(tmp_path, text)
