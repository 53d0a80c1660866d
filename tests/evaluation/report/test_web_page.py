"""A page is one file: plain text is escaped, and images are inside it."""

from gshard_nmt.evaluation.report import web_page


def test_title_and_headline_are_text_the_body_is_html_and_no_other_file_is_needed():
    page = web_page.page("a < b", "costs $1 & more", "<p>$2</p>")
    assert "<title>a &lt; b</title>" in page
    assert "<h1>a &lt; b</h1>" in page
    assert "costs $1 &amp; more" in page
    assert "<p>$2</p>" in page
    assert "$title" not in page
    assert "default-src 'none'" in page


def test_cells_of_a_table_are_text_and_the_first_of_a_row_is_its_headline():
    table = web_page.table(["name", "a < b"], [["R&D", "<b>1</b>"], ["<i>", ""]])
    assert "<thead><tr><th>name</th><th>a &lt; b</th></tr></thead>" in table
    assert "<tr><th>R&amp;D</th><td>&lt;b&gt;1&lt;/b&gt;</td></tr>" in table
    assert "<tr><th>&lt;i&gt;</th><td></td></tr>" in table
    assert table.startswith("<div class='wide'><table>")
    assert table.endswith("</table></div>")
