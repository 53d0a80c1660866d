"""Lines of dev and test in the training text: exact copies everywhere, near copies in a part of it."""

from gshard_nmt.data.cleaning import corpus_leaks as leaks
from gshard_nmt.data.cleaning.leaks import OverlapSearch
from gshard_nmt.data.cleaning.scan import Scan
from gshard_nmt.data.sets.corpus import CorpusPair
from tests.data.cleaning import corpora


def findings(train, tmp_path, all_compared=100, **held_out):
    pair = CorpusPair(tmp_path / "fr-en", "fr", "en")
    search = OverlapSearch(
        [
            leaks.HeldOut(pair, split, *(zip(*rows, strict=True) if rows else ((), ())))
            for split, rows in held_out.items()
        ]
    )
    search.add(("fr", "en"), train, all_compared)
    return list(leaks.findings(search, Scan(pair, "train", ("train.fr",), len(train))))


def test_copies_on_both_sides_are_found(tmp_path):
    train, test = corpora.sentences("fr", 200, "train"), corpora.sentences("fr", 50, "test")
    assert findings(train, tmp_path, dev=[], test=test) == []
    (finding,) = findings(train + test[5:10], tmp_path, test=test)
    assert (finding.split, finding.kind) == ("test", "leak")
    assert finding.what.startswith(
        "5 of 50 lines of test are in the training text on both sides, 5"
    )
    assert [example.line for example in finding.examples] == [6, 7, 8]


def test_exact_copies_are_found_in_lines_that_are_not_compared_word_by_word(tmp_path):
    train, test = corpora.sentences("fr", 500, "train"), corpora.sentences("fr", 50, "test")
    train += [(f"{a}!", b.upper()) for a, b in test[:5]]
    (finding,) = findings(train, tmp_path, 10, test=test)
    assert "5 of 50" in finding.what
    assert "Near copies were looked for in" in finding.what


def test_a_text_without_training_text_or_test_has_no_leak(tmp_path):
    assert findings([], tmp_path, test=corpora.sentences("fr", 5, "test")) == []
    assert findings(corpora.sentences("fr", 5, "x"), tmp_path) == []
