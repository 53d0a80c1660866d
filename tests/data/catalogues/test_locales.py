"""Locale names become language tags."""

import pytest

from gshard_nmt.data.catalogues.locales import bcp47, is_english


@pytest.mark.parametrize(
    ("locale", "tag"),
    [
        ("pt_BR", "pt-BR"),
        ("pt_PT", "pt"),
        ("de_DE.UTF-8", "de"),
        ("sr@latin", "sr-Latn"),
        ("zh_Hant", "zh-TW"),
        ("zh_HK", "zh-HK"),
        ("ca@valencia", "ca-valencia"),
        ("iw", "he"),
        ("nb_NO", "nb"),
        ("es_MX", "es-MX"),
        ("en_GB", "en-GB"),
        ("l10n", None),
        ("C", None),
    ],
)
def test_locales_become_language_tags(locale, tag):
    assert bcp47(locale) == tag


def test_variants_of_english_are_english():
    assert is_english("en")
    assert is_english("en-GB")
    assert not is_english("eng")
    assert not is_english("fr")
