import json
import re
import urllib.parse

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from gshard_nmt.serving.requests import Limits, html_parts, plain_parts, read_fields, read_request

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
RIGHT = {"q": "un", "source": "fr", "target": "en"}


def read(fields):
    return sent(JSON, json.dumps(fields).encode())


def sent(content_type, body, query=b""):
    return read_request(read_fields(query, content_type, body), Limits(characters=20, texts=3))


def lines(request):
    return [text for text, _ in request.texts]


def refusal(content_type, body):
    with pytest.raises(HTTPException) as caught:
        sent(content_type, body)
    return caught.value.status_code, caught.value.detail


def test_json_a_form_and_a_query_are_one_request():
    right = RIGHT | {"q": "déjà vu"}
    for request in [
        sent(f"{JSON}; charset=utf-8", json.dumps(right).encode()),
        sent(FORM, urllib.parse.urlencode(right).encode()),
        sent(FORM, json.dumps(right).encode()),
        sent("", b"", urllib.parse.urlencode(right).encode()),
        sent(JSON, json.dumps(right).encode(), b"q=other&source=de"),
    ]:
        assert (lines(request), request.is_list) == ([["déjà vu"]], False)
        assert (request.source, request.target, request.alternatives) == ("fr", "en", 0)


def test_a_list_is_a_list_in_json_and_in_a_form():
    assert read(RIGHT | {"q": ["a", "b"]}).is_list
    assert lines(read(RIGHT | {"q": []})) == []
    request = sent(FORM, b"q=a&q=b&source=fr&target=en&alternatives=2")
    assert (lines(request), request.is_list, request.alternatives) == ([["a"], ["b"]], True, 2)


@pytest.mark.parametrize("empty", [None, ""])
def test_an_empty_field_has_its_default(empty):
    assert read(RIGHT | {"format": empty, "alternatives": empty}).alternatives == 0
    for name in ("source", "target"):
        _, message = refusal(JSON, json.dumps(RIGHT | {name: empty}).encode())
        assert message.startswith(f"Invalid request: missing {name} parameter")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"q": None}, "missing q parameter"),
        ({"q": 5}, "q is not a string or a list of strings"),
        ({"q": ["a", None]}, "q is not a string or a list of strings"),
        ({"q": "a\0b"}, "q has a NUL character"),
        ({"q": "\ud800"}, "q has a NUL character or half of a surrogate pair"),
        ({"q": "x" * 21}, "q has 21 characters; at most 20 are allowed"),
        ({"q": ["x" * 7] * 3}, "q has 21 characters"),
        ({"q": ["x"] * 4}, "q has 4 texts; at most 3 are allowed"),
        ({"source": ["fr"]}, "source is not a language"),
        ({"target": "\udfff"}, "target is not a language"),
        ({"format": "pdf"}, "format is not supported; it must be text or html."),
        ({"format": 3}, "format is not supported"),
        ({"alternatives": -1}, "alternatives is not a number"),
        ({"alternatives": True}, "alternatives is not a number"),
        ({"alternatives": "many"}, "alternatives is not a number"),
    ],
)
def test_a_wrong_field_is_named(changes, problem):
    status, message = refusal(JSON, json.dumps(RIGHT | changes).encode())
    assert status == 400
    assert message.startswith(f"Invalid request: {problem}")


@pytest.mark.parametrize(
    ("content_type", "body", "status", "problem"),
    [
        (JSON, b"", 400, "missing q parameter"),
        (JSON, b"{", 400, "the body or the query cannot be read (Expecting property name"),
        (JSON, b"[1]", 400, "the body is not a JSON object"),
        (JSON, b'{"q": "\xff"}', 400, "cannot be read ('utf-8' codec can't decode"),
        (JSON, b'{"q": ' + b"[" * 100_000, 400, "cannot be read (maximum recursion depth"),
        (JSON, b'{"q": ' + b"1" * 5_000 + b"}", 400, "cannot be read (Exceeds the limit"),
        (FORM, b"q=%ff", 400, "cannot be read ('utf-8' codec"),
        (FORM, b"q=1&" * 2_000, 400, "cannot be read (Max number of fields"),
        (FORM, b'{"q": "un"', 400, "cannot be read (Expecting"),
        ("multipart/form-data; boundary=X", b"--X", 415, "Content-Type must be application/json"),
        ("text/plain", b"{}", 415, "Content-Type must be application/json"),
        ("", b"{}", 415, "Content-Type must be application/json"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(content_type, body, status, problem):
    refused_status, message = refusal(content_type, body)
    assert refused_status == status
    assert problem in message


def test_the_largest_text_fits_into_the_largest_body():
    limits = Limits(characters=1000)
    request = RIGHT | {"q": "\N{PARTY POPPER}" * 1000}
    for body in (json.dumps(request), urllib.parse.urlencode(request)):
        assert 12_000 < len(body) < limits.body_bytes


def test_alternatives_are_whole_texts():
    request = read(RIGHT | {"q": ["a\r\n\r\nb\n", " "], "alternatives": 5})
    assert lines(request) == [["a", "b"], []]
    assert request.answer([["A", "A2", "A3"], ["B", "B2"]], extra=7) == {
        "translatedText": ["A\r\n\r\nB\n", " "],
        "alternatives": [["A2\r\n\r\nB2\n", "A3\r\n\r\nB\n"], []],
        "extra": [7, 7],
    }
    sure = request.answer([["A"], ["B"]], sure=[0.25, 0.98765432])
    assert sure["confidence"] == [[0.25, 0.9877], []]
    assert "confidence" not in request.answer([["A"], ["B"]], sure=[None, None])
    single = read(RIGHT | {"alternatives": 1})
    assert single.answer([["A", "A2", "A3"]]) == {"translatedText": "A", "alternatives": ["A2"]}


@pytest.mark.parametrize(
    ("text", "lines", "translated"),
    [
        ("", [], ""),
        (" un &amp; d&eacute;jà ", ["un & déjà"], " UN &amp; DÉJÀ "),
        ("<p>un <b>deux</b>!<p>trois", ["un", "deux", "trois"], "<p>UN <b>DEUX</b>!</p><p>TROIS</p>"),
        ("a\n  line &lt;b&gt;", ["a line <b>"], "A LINE &lt;B&gt;"),
        ('<img alt="x"><a href="/y?z=1&amp;q=b" title="t">l</a><!-- c -->', ["l"],
         '<img alt="x"><a href="/y?z=1&amp;q=b" title="t">L</a><!-- c -->'),
        ("<script>a < b && c</script>x", ["x"], "<script>a < b && c</script>X"),
        ("<style>p{}</style><pre>a\nb</pre>x", ["x"], "<style>p{}</style><pre>a\nb</pre>X"),
        ('<i translate="no">a<b>b</b>c</i>d<code>e<b>f</b>g</code>h', ["d", "h"],
         '<i translate="no">a<b>b</b>c</i>D<code>e<b>f</b>g</code>H'),
        ('<!DOCTYPE html>\n<html lang="fr"><head><title>t</title></head><body><p>a</body></html>',
         ["t", "a"],
         '<!DOCTYPE html>\n<html lang="fr"><head><title>T</title></head><body><p>A</p></body></html>'),
        ('\ufeff<?xml encoding="utf-8"?>\n<?xml?><!--<c>--><html><body x>a</html>', ["a"],
         '\ufeff<?xml encoding="utf-8"?>\n<?xml?><!--<c>--><html><body x>A</body></html>'),
        ("<body class='x'>a", ["a"], '<body class="x">A</body>'),
        ('<?xml encoding="utf-8"><html>', [], '<?xml encoding="utf-8"><html></html>'),
        ("<p>a</p></body></html><p>b</p>", ["a", "b"], "<p>A</p><p>B</p>"),
        ("<!--><p>a</p></html><p>b</p>", ["a", "b"], "<!----><p>A</p><p>B</p>"),
        ('<i id="<script">a</i></body><p>b', ["a", "b"], '<i id="&lt;script">A</i><p>B</p>'),
        ("<script>'</body>'</script></body >a", ["a"], "<script>'</body>'</script>A"),
        ("a\x01b", ["ab"], "AB"),
        ("2 < 3 → 4", [], "2 &lt; 3 → 4"),
    ],
)  # fmt: skip
def test_text_nodes_are_translated_and_all_else_stays(text, lines, translated):
    found, join = html_parts(text)
    assert found == lines
    assert join([line.upper() for line in lines]) == translated


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("un <b>deux</b> &amp; trois<p>x", ["un", "deux", "& trois", "x"]),
        ("<p>un <b>deux</b> &amp; trois<p>x", ["un <b>deux</b> &amp; trois", "x"]),
        ("<ul><li> <a href='/y'>l</a></li><li>x <a>m <i>n</i></a></li></ul> t", None),
        ("<p>a<br>b <b>c</b>", ["a", "b", "c"]),
        ("<p>a <code>b</code> c", ["a", "c"]),
        ("<p>a <b translate=no>b</b> c", ["a", "c"]),
        ("<p>" + "a <b>b</b>" * 5, ["a", "b"] * 5),
    ],
)
def test_a_sentence_with_inline_elements_is_one_line_if_tags_are_kept(text, lines):
    found, join = html_parts(text, keeps_tags=True)
    assert found == (lines or ["l", "x <a>m <i>n</i></a>", "t"])
    upper = [re.sub("(<[^>]*>|&[a-z]+;)|[a-z]+", lambda m: m[1] or m[0].upper(), s) for s in found]
    plain, join_plain = html_parts(text)
    assert join(upper) == join_plain([line.upper() for line in plain])


def test_tags_that_are_lost_or_in_disorder_leave_a_document():
    _, join = html_parts("<p>un <b>deux</b></p> x", keeps_tags=True)
    assert join(["</b>A<b> & b < c", "X"]) == "<p>A<b> &amp; b &lt; c</b></p> X"
    assert join(["", "X"]) == "<p></p> X"


def test_a_document_is_written_many_times():
    _, join = html_parts("<b> a</b>")
    assert [join([line]) for line in ("B", "<&\0", "C")] == [
        *("<b> B</b>", "<b> &lt;&amp;</b>", "<b> C</b>")
    ]


def test_a_document_that_cannot_be_read_is_refused():
    for text, problem in (
        ("<b>" * 5000, "nested too deeply"),
        ("<!doctype html [<a ", "without an element"),
    ):
        with pytest.raises(HTTPException, match=problem):
            html_parts(text)


def test_the_time_does_not_grow_with_the_square_of_the_elements(monkeypatch):
    walks = []
    count = lambda parent: walks.append(parent) or []  # noqa: E731
    monkeypatch.setattr("gshard_nmt.serving.requests._elements", count)
    lines, _ = html_parts("<div>x" * 20 + "<b>y</b>z" * 20 + "</div>t" * 20)
    assert len(lines) == 80
    assert not walks


MARKUP = st.lists(
    st.sampled_from(
        ["<", ">", "</", "<p>", "a ", "&", '"', "<!--", "\n", "<br>", "</p>", "<b>", "</b>"]
    )
)


@given(st.one_of(st.text(), MARKUP.map("".join)), st.booleans())
@example("<html>", False)
def test_any_text_is_a_document_or_refused(text, keeps_tags):
    try:
        lines, join = html_parts(text, keeps_tags)
    except HTTPException:
        return
    assert all(line.strip() for line in lines)
    once = join(lines)
    lines, join = html_parts(once, keeps_tags)
    assert join(lines) == once


@given(st.text(alphabet="ab \r\n\t"))
def test_line_breaks_and_blank_lines_stay_as_they_are(text):
    lines, join = plain_parts(text)
    assert not any("\n" in line or "\r" in line or not line.strip() for line in lines)
    assert join(lines) == text


def test_a_model_can_write_no_element_that_was_not_there():
    page = "<p>see <b>x</b> now</p>"
    assert html_parts(page, keeps_tags=True)[1](["S <b>X</b>"]) == "<p>S <b>X</b></p>"
    for written in ("S <img src=x onerror=f()> <b>X</b>", "S <b onclick=f()>X</b>"):
        join = html_parts(page, keeps_tags=True)[1]
        answer = join([written])
        # The next alternative is compared with the page, and not with this answer.
        assert join(["S <b>X</b>"]) == "<p>S <b>X</b></p>"
        assert "on" not in answer
        assert answer.startswith("<p>S ")
