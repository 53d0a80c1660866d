import pytest

from gshard_nmt.data.text.scripts import script_of, scripts_of_language


def test_the_script_of_a_letter():
    assert [script_of(c) for c in "aжあ文한ªµ1 "] == [
        *("LATIN", "CYRILLIC", "CJK", "CJK", "HANGUL", "", "", "", "")
    ]


@pytest.mark.parametrize(
    ("tag", "scripts"),
    [
        ("en", {"LATIN"}),
        ("pt-BR", {"LATIN"}),
        ("ja", {"CJK"}),
        ("zh_CN", {"CJK"}),
        ("ko", {"HANGUL", "CJK"}),
        ("sr", {"CYRILLIC", "LATIN"}),
        ("sr-Latn", {"LATIN"}),
        ("uz-cyrl", {"CYRILLIC"}),
        ("ff-Adlm", set()),
        ("xyz", set()),
    ],
)
def test_the_scripts_of_a_language(tag, scripts):
    assert scripts_of_language(tag) == scripts
