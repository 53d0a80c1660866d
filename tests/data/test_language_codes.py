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

TAGS = """
fra_Latn fr    fra fr              fr fr              nob nb           por pt          zho_Hans zh
zho-CN zh      zho_Hant zh-Hant    zho-TW zh-Hant     srp_Cyrl sr      fra_latn fr     srp_Latn sr-Latn
por-BR pt-BR   srp-Latn sr-Latn    eng-US en-US       kas_Deva ks-Deva kas_Arab ks     arb_Arab ar
npi_Deva ne    arb_Latn ar-Latn    kor_Hang ko        lvs_Latn lv      ekk_Latn et     prs_Arab fa-AF
ckb-Arab ckb   zho_trad zh-Hant    cz cs              ace_Latn ace     yue_Hant yue    taq_Tfng taq-Tfng
jpn_Jpan ja    aka_Latn ak         twi_Latn tw        ajp_Arab ajp     pbt_Arab ps
cat_Latn_vale1252 ca-valencia
"""
FOLDERS = """
de_DE de   zh_cn zh-CN   quz qu   sh sr-Latn   no no   twi_Latn tw   xx None   fr-EN None
es-419 es-419   en_XX en-XX   sr_CS sr-CS
"""
LOCALES = """
pt_BR pt-BR         pt_PT pt       de_DE.UTF-8 de              sr@latin sr-Latn       sr_RS@latin sr-Latn
zh zh-CN            zh_Hant zh-TW  zh_HK zh-HK                 ca@valencia ca-valencia iw he
nb_NO nb            no nb          sr@ijekavianlatin sr-Latn-ijekavsk                 es_MX es-MX
en_GB en-GB         de@euro de     l10n None   C None          en@quot None   to_do None   po None
"""
SCRIPTS = """
zh Hans     zh-Latn Latn    lzh Hans          wuu Hans    nan Hans    hak Hans
yue Hant    zho_Hant Hant   jpn Jpan          kor Kore    th Thai     qqq Latn    mul-and-more Latn
"""
NEAREST = """
pt_BR pt,pt-BR pt-BR     pt_BR pt,es pt         PT-br pt pt               pt pt-BR pt-BR
fr-FR fr,fr-CA fr        zh-Hans zh-CN zh-CN    zh zh-CN,zh zh            cmn zh-CN,zh-TW zh-CN
eng en en                zh-HK zh-CN,zh-TW zh-TW    zh-TW zh-CN None      sr sr-Latn None
es es-MX,es-AR None      nn nb None             xxxxxxxxxxxxxxxxxxxx en None
"""


def table(text: str, columns: int = 2) -> list[tuple[str | None, ...]]:
    words = [None if word == "None" else word for word in text.split()]
    return list(zip(*(words[n::columns] for n in range(columns)), strict=True))


@pytest.mark.parametrize(
    ("function", "code", "expected"),
    [
        *((understand, code, Language(tag)) for code, tag in table(TAGS)),
        *((folder_tag, *row) for row in table(FOLDERS)),
        *((locale_tag, *row) for row in table(LOCALES)),
        *((script_of, *row) for row in table(SCRIPTS)),
        (language_name, "fr", "French"),
        (language_name, "zh-CN", "Chinese (CN)"),
        (language_name, "nb", "Norwegian Bokmål"),
        (language_name, "qqq-XX", "qqq-XX"),
    ],
)
def test_what_a_code_means(function, code, expected):
    assert function(code) == expected


@pytest.mark.parametrize(("code", "known", "found"), table(NEAREST, 3))
def test_the_nearest_language_of_a_model(code, known, found):
    assert nearest(code, known.split(",")) == found


@pytest.mark.parametrize(
    "codes",
    [
        "zh zh-CN zh_cn zho_Hans cmn chi",
        "zh-TW zh-Hant zho_Hant",
        "ja jp jpn ja_JP",
        "he iw heb_Hebr",
        "en en-US eng_Latn",
        *("nb no", "fil tl", "sr-Cyrl sr", "sh sr-Latn", "pt pt-PT"),
    ],
)
def test_codes_with_the_same_meaning(codes):
    assert all(same(first, second) for first in codes.split() for second in codes.split())


@pytest.mark.parametrize("codes", ["zh zh-TW", "pt pt-BR", "sr sr-Latn", "en en-GB", "nb nn"])
def test_codes_with_different_meanings(codes):
    assert not same(*codes.split())
    assert names_language("EN-GB", "en", regions=True)
