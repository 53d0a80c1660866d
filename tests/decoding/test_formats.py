"""The formats of the output, to the letter."""

import json

import pytest

from gshard_nmt.decoding.formats import FORMATS, as_jsonl, chosen_format
from gshard_nmt.decoding.translator import Hypothesis
from gshard_nmt.errors import UserError

NBEST = [Hypothesis("Ä b", -0.123456789), Hypothesis("", -2.0)]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("text", "Ä b\n"),
        ("tsv", "7\t-0.1235\tÄ b\n7\t-2.0000\t\n"),
        (
            "jsonl",
            '{"line": 7, "source": "a\\tb", "translations": [{"text": "Ä b", "score": -0.123456789}, '
            '{"text": "", "score": -2.0}]}\n',
        ),
    ],
)
def test_formats(name, written):
    assert FORMATS[name](7, "a\tb", NBEST) == written


def test_a_json_object_is_one_line_whatever_the_source_has():
    source = "a\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0b"
    written = as_jsonl(1, source, [Hypothesis("x", -1.0, pieces=3)])
    assert len(written.splitlines()) == 1
    record = json.loads(written)
    assert record["source"] == source
    assert record["pieces"] == 3


@pytest.mark.parametrize(
    ("name", "nbest", "scores", "chosen"),
    [
        (None, 1, False, "text"),
        (None, 1, True, "tsv"),
        (None, 2, False, "tsv"),
        ("text", 1, False, "text"),
        ("tsv", 1, False, "tsv"),
        ("jsonl", 3, True, "jsonl"),
    ],
)
def test_the_format_follows_from_the_other_flags_unless_it_is_named(name, nbest, scores, chosen):
    assert chosen_format(name, nbest, scores) == chosen


@pytest.mark.parametrize(
    ("nbest", "scores", "words"), [(2, False, "--nbest is 2"), (1, True, "--scores")]
)
def test_text_has_no_place_for_scores_or_several_translations(nbest, scores, words):
    with pytest.raises(UserError, match=rf"^--format is text.*{words}.*Give --format tsv or jsonl"):
        chosen_format("text", nbest, scores)
