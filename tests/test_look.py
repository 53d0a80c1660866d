"""`make look` finds its pages and says what is missing. The browser itself is used outside CI only."""

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation.report import page, report
from scripts import browser, look
from scripts.example_report import example_report


def test_a_page_is_found_in_a_report_or_in_a_run(tmp_path):
    (tmp_path / "run" / "report").mkdir(parents=True)
    file = tmp_path / "run" / "report" / "index.html"
    file.write_text("<p>page</p>")
    assert look.find_pages([str(tmp_path / "run")]) == {"run": file}
    assert look.find_pages([str(tmp_path / "run" / "report")]) == {"report": file}
    with pytest.raises(
        UserError, match=r"RUN=.* has no index\.html and no report/index\.html\. Give"
    ):
        look.find_pages([str(tmp_path)])


def test_without_a_browser_a_message_says_what_to_install(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="There is no browser in PATH: looked for chromium, "):
        browser.find_browser()
    assert look.main([]) == 2
    assert capsys.readouterr().err.startswith("make look: There is no browser")


@pytest.mark.parametrize("systems", [1, 3])
def test_the_example_of_100_languages_is_small_and_repeatable(systems):
    content = report._page_content(example_report(100, systems))
    text = page.render(content)
    assert len(text.encode()) < 500_000
    assert text == page.render(report._page_content(example_report(100, systems)))
