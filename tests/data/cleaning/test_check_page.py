"""The page of a check, without findings; tests/test_check_corpus.py has one with findings."""

from gshard_nmt.data.cleaning import check_page


def test_the_page_of_a_clean_corpus_says_so():
    splits = [{"pair": "fr-en", "split": "train", "lines": 1234, "sample": 1000}]
    page = check_page.page("my & corpus", [], splits)
    assert "Nothing looks wrong." in page
    assert "my &amp; corpus" in page
    assert "<th>fr-en train</th><td>1,234</td><td>1,000</td>" in page
