"""Names of language pairs are split into tags, or refused."""

import pytest

from gshard_nmt.data.pair_names import pair_in, split_pair
from gshard_nmt.errors import UserError


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("fr-en", ("fr", "en")),
        ("fr-de", ("fr", "de")),
        ("pt-BR-en", ("pt-BR", "en")),
        ("en-sr-Latn", ("en", "sr-Latn")),
        ("zh-Hant-HK-yue", ("zh-Hant-HK", "yue")),
        ("ca-valencia-en", ("ca-valencia", "en")),
        ("zh_cn-en", ("zh-CN", "en")),
        ("pt-br-en", ("pt-BR", "en")),
        ("sr-latn-bs", ("sr-Latn", "bs")),
        ("deu-eng", ("de", "en")),
        ("fra_Latn-zho_Hans", ("fr", "zh")),
        ("cz-en", ("cs", "en")),
        ("sh-en", ("sr-Latn", "en")),
        ("cmn-eng", ("zh", "en")),
        ("de_DE-en_US", ("de", "en")),
        ("en-en_GB", ("en", "en-GB")),
        ("es-419-en", ("es-419", "en")),
    ],
)
def test_a_name_is_split_into_tags(name, pair):
    assert split_pair(name) == pair


@pytest.mark.parametrize(
    "name",
    [
        "names",
        "fr",
        "a-en",
        "xx-en",
        "my-data",
        "fr-en-small",
        "fr-fr",
        "en-eng",
        "zh-zh_CN",
        "en-AU",
        "EN-FR",
        "",
        "-en",
    ],
)
def test_other_names_are_no_pair(name):
    assert split_pair(name) is None


def test_a_name_that_is_not_clear_is_refused():
    with pytest.raises(UserError) as error:
        split_pair("pt-br-es")
    assert str(error.value) == (
        "the name pt-br-es is not clear: it may be the pair of pt and br-ES, or pt-BR and es. Write "
        "regions with capital letters: pt-br-ES or pt-BR-es."
    )


def test_a_file_may_name_its_pair():
    assert pair_in("Europarl.en-fr") == ("en", "fr")
    assert pair_in("opus.de-en-train") == ("de", "en")
    assert pair_in("en-fr.train") == ("en", "fr")
    assert pair_in("README") is None
