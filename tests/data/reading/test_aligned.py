"""Line-aligned files with scores, and files that do not fit each other."""

import pytest

from gshard_nmt.data.reading.reader import read_aligned
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.errors import UserError


def rows(folder):
    (pair,) = find_pairs(folder.parent)
    (text,) = pair.inputs("train")
    return [row for block in read_aligned(text) for row in block]


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "fr-en"
    folder.mkdir()
    (folder / "Europarl.en-fr.fr").write_text("un\ndeux\n")
    (folder / "Europarl.en-fr.en").write_text("one\ntwo\n")
    return folder


def test_a_third_file_has_scores(folder):
    assert rows(folder) == [("un", "one", None), ("deux", "two", None)]
    (folder / "Europarl.en-fr.scores").write_text("1.25\n0.5\n")
    assert rows(folder) == [("un", "one", 1.25), ("deux", "two", 0.5)]


def test_scores_that_do_not_fit_are_errors(folder):
    scores = folder / "Europarl.en-fr.scores"
    scores.write_text("1.25\nlow\n")
    with pytest.raises(UserError, match=f"{scores}, line 2 has the score 'low'"):
        rows(folder)
    scores.write_text("1.25\n")
    with pytest.raises(UserError, match=f"has 2 lines, {scores} has 1"):
        rows(folder)


def test_all_lines_are_counted_for_the_error(folder):
    (folder / "Europarl.en-fr.fr").write_text("x\n" * 10_000)
    (folder / "Europarl.en-fr.en").write_text("x\n" * 9_999)
    with pytest.raises(UserError, match=r"fr has 10000 lines, .*en has 9999"):
        rows(folder)
