"""Inline tags of documents: kept in their places, or the translation is not used."""

import pytest

from gshard_nmt.decoding.documents.markup import line_of, tagged


@pytest.mark.parametrize(
    ("translation", "expected"),
    [
        ("<x2/>: <g1>B &</g1>", "<code>c</code>: <b>B &amp;</b>"),
        (". <g1> B </g1>: <x2/>", ". <b>B</b> : <code>c</code>"),
        ("<g1>b</g1>", None),
        ("<g1>b</g1> <x2/> <x2/>", None),
        ("</g1>b<g1> <x2/>", None),
        ("b <g1> </g1> <x2/>", None),
    ],
)
def test_a_translation_without_its_tags_is_not_used(translation, expected):
    line = line_of(tagged("a <b>b</b> <code>c</code>", ("code",)))
    assert line.text == "a <g1>b</g1> <x2/>"
    assert line.restored(translation, lambda text: text.replace("&", "&amp;")) == expected


def test_elements_that_do_not_nest_are_not_used():
    line = line_of(tagged("a <b>b <i>c</i></b> d", ()))
    assert line.restored("<g2>c</g2> <g1>b</g1>", str) == "<i>c</i> <b>b</b>"
    assert line.restored("<g1>b <g2>c</g1> d</g2>", str) is None
    assert line.restored("b <g1> <g2></g2> </g1> c d", str) is None
    assert line_of(tagged('<a id="i"></a>b <i></i>', ())).text == "b"
