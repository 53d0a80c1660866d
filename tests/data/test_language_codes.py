"""One language is one language, however its code is written."""

import pytest

from gshard_nmt.data.language_codes import (
    Language,
    folder_tag,
    language_name,
    locale_tag,
    names_language,
    nearest,
    same,
    script_of,
    understand,
)


@pytest.mark.parametrize(
    ("code", "tag"),
    [
        *[("fra_Latn", "fr"), ("fra", "fr"), ("fr", "fr"), ("nob", "nb"), ("por", "pt")],
        *[("zho_Hans", "zh"), ("zho_Hant", "zh-Hant"), ("zho-CN", "zh"), ("zho-TW", "zh-Hant")],
        *[("srp_Cyrl", "sr"), ("srp_Latn", "sr-Latn"), ("srp-Latn", "sr-Latn"), ("fra_latn", "fr")],
        *[("por-BR", "pt-BR"), ("eng-US", "en-US"), ("kas_Deva", "ks-Deva"), ("kas_Arab", "ks")],
        *[("arb_Arab", "ar"), ("arb_Latn", "ar-Latn"), ("npi_Deva", "ne"), ("kor_Hang", "ko")],
        *[("lvs_Latn", "lv"), ("ekk_Latn", "et"), ("prs_Arab", "fa-AF"), ("ckb-Arab", "ckb")],
        *[("cat_Latn_vale1252", "ca-valencia"), ("zho_trad", "zh-Hant"), ("cz", "cs")],
        *[("ace_Latn", "ace"), ("yue_Hant", "yue"), ("taq_Tfng", "taq-Tfng"), ("jpn_Jpan", "ja")],
        *[("aka_Latn", "ak"), ("twi_Latn", "tw"), ("ajp_Arab", "ajp"), ("pbt_Arab", "ps")],
    ],
)
def test_a_code_becomes_a_tag(code, tag):
    assert understand(code) == Language(tag)


@pytest.mark.parametrize(
    "codes",
    [
        ("zh", "zh-CN", "zh_cn", "zho_Hans", "cmn", "chi"),
        ("zh-TW", "zh-Hant", "zho_Hant"),
        ("ja", "jp", "jpn", "ja_JP"),
        ("he", "iw", "heb_Hebr"),
        ("en", "en-US", "eng_Latn"),
        *[("nb", "no"), ("fil", "tl"), ("sr-Cyrl", "sr"), ("sh", "sr-Latn"), ("pt", "pt-PT")],
    ],
)
def test_codes_with_the_same_meaning(codes):
    assert all(same(first, second) for first in codes for second in codes)


@pytest.mark.parametrize(
    "codes", [("zh", "zh-TW"), ("pt", "pt-BR"), ("sr", "sr-Latn"), ("en", "en-GB"), ("nb", "nn")]
)
def test_codes_with_different_meanings(codes):
    assert not same(*codes)
    assert names_language("EN-GB", "en", regions=True)


@pytest.mark.parametrize(
    ("code", "known", "found"),
    [
        *[
            ("pt_BR", ["pt", "pt-BR"], "pt-BR"),
            ("pt_BR", ["pt", "es"], "pt"),
            ("PT-br", ["pt"], "pt"),
        ],
        *[
            ("pt", ["pt-BR"], "pt-BR"),
            ("fr-FR", ["fr", "fr-CA"], "fr"),
            ("zh-Hans", ["zh-CN"], "zh-CN"),
        ],
        *[
            ("zh", ["zh-CN", "zh"], "zh"),
            ("cmn", ["zh-CN", "zh-TW"], "zh-CN"),
            ("eng", ["en"], "en"),
        ],
        *[
            ("zh-HK", ["zh-CN", "zh-TW"], "zh-TW"),
            ("zh-TW", ["zh-CN"], None),
            ("sr", ["sr-Latn"], None),
        ],
        *[("es", ["es-MX", "es-AR"], None), ("x" * 99, ["en"], None), ("nn", ["nb"], None)],
    ],
)
def test_the_nearest_language_of_a_model(code, known, found):
    assert nearest(code, known) == found


@pytest.mark.parametrize(
    ("locale", "tag"),
    [
        *[("pt_BR", "pt-BR"), ("pt_PT", "pt"), ("de_DE.UTF-8", "de"), ("sr@latin", "sr-Latn")],
        *[("sr_RS@latin", "sr-Latn"), ("zh", "zh-CN"), ("zh_Hant", "zh-TW"), ("zh_HK", "zh-HK")],
        *[("ca@valencia", "ca-valencia"), ("sr@ijekavianlatin", "sr-Latn-ijekavsk"), ("iw", "he")],
        *[("nb_NO", "nb"), ("no", "nb"), ("es_MX", "es-MX"), ("en_GB", "en-GB"), ("de@euro", "de")],
        *[("l10n", None), ("C", None), ("en@quot", None), ("to_do", None), ("po", None)],
    ],
)
def test_locales_become_language_tags(locale, tag):
    assert locale_tag(locale) == tag


@pytest.mark.parametrize(
    ("code", "tag"),
    [
        ("de_DE", "de"),
        ("zh_cn", "zh-CN"),
        ("quz", "qu"),
        ("sh", "sr-Latn"),
        ("no", "no"),
        ("twi_Latn", "tw"),
        ("xx", None),
    ],
)
def test_the_codes_of_folders(code, tag):
    assert folder_tag(code) == tag


@pytest.mark.parametrize(
    ("code", "script"),
    [
        *[("zh", "Hans"), ("zh-Latn", "Latn"), ("lzh", "Hans"), ("wuu", "Hans"), ("nan", "Hans")],
        *[("hak", "Hans"), ("yue", "Hant"), ("zho_Hant", "Hant"), ("jpn", "Jpan"), ("kor", "Kore")],
        *[("th", "Thai"), ("qqq", "Latn"), ("mul and more", "Latn")],
    ],
)
def test_the_script_of_a_language(code, script):
    assert script_of(code) == script


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
