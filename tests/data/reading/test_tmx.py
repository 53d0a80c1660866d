"""Translation memories: languages, markup, and files that are wrong or dangerous."""

import pytest

from gshard_nmt.data.reading.reader import read_tmx
from gshard_nmt.data.sets.corpus import find_pairs
from gshard_nmt.errors import UserError

HEAD = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx xmlns="http://www.lisa.org/tmx14" version="1.4"><body>
"""


def rows(tmp_path, units, head=HEAD, name="fr-en", encoding="utf-8", end="</body></tmx>"):
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.tmx").write_text(f"{head}{units}{end}", encoding=encoding)
    (pair,) = find_pairs(tmp_path)
    (memory,) = pair.inputs("train")
    return [row for block in read_tmx(memory) for row in block]


def unit(**texts):
    sides = (
        f'<tuv xml:lang="{code.replace("_", "-")}"><seg>{text}</seg></tuv>'
        for code, text in texts.items()
    )
    return f"<tu>{''.join(sides)}</tu>\n"


def test_units_may_have_many_languages(tmp_path):
    units = unit(de="eins", en="one", fr="un") + unit(de="zwei", fr="deux") + unit(fr="3", en="4")
    assert rows(tmp_path, units) == [("un", "one", None), ("3", "4", None)]


def test_a_region_is_taken_if_the_language_itself_is_not_there(tmp_path):
    units = unit(EN_GB="colour", en="color", FR_ca="couleur") + unit(fr="un", EN_US="one")
    assert rows(tmp_path, units) == [("couleur", "color", None), ("un", "one", None)]
    with pytest.raises(UserError, match="no unit with text in both fr-CA and en; it has EN-US, fr"):
        rows(tmp_path / "other", unit(fr="un", EN_US="one"), name="fr-CA-en")


def test_another_script_is_another_language(tmp_path):
    units = unit(zh_TW="a", en="b") + unit(zh_Hans="c", en="d")
    assert rows(tmp_path, units, name="zh-en") == [("c", "d", None)]


def test_codes_of_a_format_are_no_text_and_lines_are_joined(tmp_path):
    source = 'a <bpt i="1">&lt;b&gt;</bpt>bold<ept i="1">&lt;/b&gt;</ept> <hi>word</hi>'
    units = unit(fr=source, en="one\n   two &amp; three<ph>{1}</ph>")
    assert rows(tmp_path, units) == [("a bold word", "one two & three", None)]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8-sig", "utf-16"])
def test_the_old_attribute_and_other_encodings(tmp_path, encoding):
    head = f"<?xml version='1.0' encoding='{encoding.removesuffix('-sig')}'?><tmx><body>"
    units = unit(fr="été", en="b").replace("xml:lang", "lang") * 9000
    assert rows(tmp_path, units, head, encoding=encoding) == [("été", "b", None)] * 9000


def test_a_unit_may_be_the_root(tmp_path):
    assert rows(tmp_path, unit(fr="a", en="b"), "", end="") == [("a", "b", None)]


def test_an_encoding_that_is_unknown_or_wrong_is_an_error(tmp_path):
    head = "<?xml version='1.0' encoding='{}'?>\n<tmx><body>\n"
    for name in ("ANSI", "big5"):
        with pytest.raises(UserError, match="is not well-formed XML in the encoding that its"):
            rows(tmp_path, unit(fr="a", en="b"), head.format(name))
    units = unit(fr="a", en="b") + unit(fr="é", en="b")
    with pytest.raises(UserError, match=r"is not well-formed XML .*line 4"):
        rows(tmp_path / "other", units, head.format("utf-8"), encoding="latin-1")


@pytest.mark.parametrize(
    ("units", "words"),
    [
        (unit(fr="a", en="b") + "<tu><tuv></tu>", "is not well-formed XML .*line 5"),
        ("\n<tu>&nosuch;</tu>", "undefined entity &nosuch;: line 5"),
        ("<tu><prop type='score'>x</prop>" + unit(fr="a", en="b")[4:], "has the score 'x'"),
        (unit(de="a", en="b"), "no unit with text in both fr and en; it has de, en"),
    ],
)
def test_memories_that_are_wrong(tmp_path, units, words):
    with pytest.raises(UserError, match=words):
        rows(tmp_path, units)


def test_entities_do_not_fill_the_memory_and_read_no_file(tmp_path):
    bombs = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    head = f'<!DOCTYPE tmx [<!ENTITY e0 "ha">{bombs}]>\n<tmx><body>'
    with pytest.raises(UserError, match="limit on input amplification"):
        rows(tmp_path, unit(fr="&e9;", en="b"), head)
    head = '<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]><tmx><body>'
    with pytest.raises(UserError, match="undefined entity"):
        rows(tmp_path, unit(fr="&x;", en="b"), head)
