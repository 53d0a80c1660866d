"""docs/settings.md is what the code says."""

import dataclasses

from gshard_nmt.settings.config import CLASSES
from scripts import settings_page


def test_the_page_is_current():
    assert settings_page.PAGE.read_text(encoding="utf-8") == settings_page.page(), (
        "make the page again with `python scripts/settings_page.py`"
    )


def test_every_setting_has_its_words_a_group_and_a_range():
    for cls in CLASSES.values():
        fields = settings_page.fields_of(cls)
        assert [field.name for field in fields] == [
            f.name for f in dataclasses.fields(cls) if f.init
        ]
        assert settings_page.ranges_of(cls).keys() == {field.name for field in fields}
        for field in fields:
            text = field.words.partition("\n\n")[0]
            assert text.endswith((".", ":")), f"{cls.__name__}.{field.name}: {text}"
            assert field.group


def test_ranges_come_from_the_rules_and_else_from_the_types():
    assert settings_page.ranges_of(CLASSES["Train"])["steps"] == "a whole number, at least 1"
    assert settings_page.ranges_of(CLASSES["Data"])["language_tags"] == "True or False"
