import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from gshard_nmt.serving.text_parts import html_parts, plain_parts


@pytest.mark.parametrize(
    ("text", "lines", "translated"),
    [
        ("", [], ""),
        (" un &amp; d&eacute;jà ", ["un & déjà"], " UN &amp; DÉJÀ "),
        (
            "<p>un <b>deux</b>!<p>trois",
            ["un", "deux", "trois"],
            "<p>UN <b>DEUX</b>!</p><p>TROIS</p>",
        ),
        ("a\n  line &lt;b&gt;", ["a line <b>"], "A LINE &lt;B&gt;"),
        (
            '<img alt="x"><a href="/y?z=1&amp;q=b" title="t">l</a><!-- c -->',
            ["l"],
            '<img alt="x"><a href="/y?z=1&amp;q=b" title="t">L</a><!-- c -->',
        ),
        ("<script>a < b && c</script>x", ["x"], "<script>a < b && c</script>X"),
        ("<style>p{}</style><pre>a\nb</pre>x", ["x"], "<style>p{}</style><pre>a\nb</pre>X"),
        (
            '<i translate="no">a<b>b</b>c</i>d<code>e<b>f</b>g</code>h',
            ["d", "h"],
            '<i translate="no">a<b>b</b>c</i>D<code>e<b>f</b>g</code>H',
        ),
        (
            '<!DOCTYPE html>\n<html lang="fr"><head><title>t</title></head><body><p>a</body></html>',
            ["t", "a"],
            '<!DOCTYPE html>\n<html lang="fr"><head><title>T</title></head><body><p>A</p></body></html>',
        ),
        ("<p>a</p></body></html><p>b</p>", ["a", "b"], "<p>A</p><p>B</p>"),
        ("a\x01b", ["ab"], "AB"),
        ("2 < 3 → 4", [], "2 &lt; 3 → 4"),
    ],
)
def test_text_nodes_are_translated_and_all_else_stays(text, lines, translated):
    found, join = html_parts(text)
    assert found == lines
    assert join([line.upper() for line in lines]) == translated


def test_a_document_is_written_many_times():
    _, join = html_parts("<b> a</b>")
    assert [join([line]) for line in ("B", "<&\0", "C")] == [
        *("<b> B</b>", "<b> &lt;&amp;</b>", "<b> C</b>"),
    ]


def test_a_document_that_cannot_be_read_is_refused():
    for text, problem in (
        ("<b>" * 5000, "nested too deeply"),
        ("<!doctype html [<a ", "without an element"),
    ):
        with pytest.raises(HTTPException, match=problem):
            html_parts(text)


MARKUP = st.lists(
    st.sampled_from(["<", ">", "</", "<p>", "a ", "&", '"', "<!--", "\n", "<br>", "</p>"])
)


@given(st.one_of(st.text(), MARKUP.map("".join)))
@example("<html>")
def test_any_text_is_a_document_or_refused(text):
    try:
        lines, join = html_parts(text)
    except HTTPException:
        return
    assert all(line.strip() for line in lines)
    once = join(lines)
    lines, join = html_parts(once)
    assert join(lines) == once


@given(st.text(alphabet="ab \r\n\t"))
def test_line_breaks_and_blank_lines_stay_as_they_are(text):
    lines, join = plain_parts(text)
    assert not any("\n" in line or "\r" in line or not line.strip() for line in lines)
    assert join(lines) == text
