import re

import pytest

from gshard_nmt.serving.language_names import NAMES, language_name


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("fr", "French"),
        ("zh-CN", "Chinese (CN)"),
        ("be-Latn", "Belarusian (Latn)"),
        ("nb", "Norwegian Bokmål"),
        ("qqq", "qqq"),
        ("qqq-XX", "qqq-XX"),
    ],
)
def test_a_tag_gets_an_english_name(tag, name):
    assert language_name(tag) == name


def test_the_table_has_codes_and_names():
    for code, name in NAMES.items():
        assert re.fullmatch("[a-z]{2,3}", code), code
        assert re.fullmatch(r"[A-Z][\w-]+( [A-Z][\w]+)*", name), name
    assert len(set(NAMES.values())) == len(NAMES)
