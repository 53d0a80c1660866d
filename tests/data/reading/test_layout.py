"""Which files belong together, and to which split."""

import itertools
from pathlib import Path

import pytest

from gshard_nmt.data.reading.layout import find_inputs, pair_in, split_of, split_pair
from gshard_nmt.errors import UserError


def listed(*names, languages=("fr", "en")):
    """Returns the inputs of a folder with these files: split, format, names of the files."""
    notes = []
    texts, problems = find_inputs(Path("corpus/fr-en"), names, languages, notes)
    assert len({each.name for each in texts}) == len(texts)
    inputs = [(t.split, t.format, *(file.name for file in t.files)) for t in texts]
    return inputs, problems, notes


@pytest.mark.parametrize(
    ("stem", "split"),
    [
        *[("train", "train"), ("train-00000-of-00002", "train"), ("opus.de-en-train", "train")],
        *[("training", "train"), ("dev", "dev"), ("validation", "dev"), ("valid", "dev")],
        *[
            ("newsdev2016-fren", "dev"),
            ("newstest2014-fren", "test"),
            ("IWSLT.TED.tst2013", "test"),
            ("devtest", "devtest"),
        ],
        *[("test", "test"), ("Europarl.en-fr", None), ("contest", None), ("latest", None)],
    ],
)
def test_a_word_names_the_split(stem, split):
    assert split_of(stem) == split


def test_several_files_are_inputs_of_their_own_in_the_order_of_their_names():
    inputs, problems, notes = listed(
        *("train-00001.en.gz", "train-00001.fr", "train-00000.fr.zst", "train-00000.en"),
        *("train.part1.tsv", "train.jsonl.gz", "dev.tmx", "README.md", "LICENSE", "checksums.txt"),
    )
    assert inputs == [
        ("dev", "tmx", "dev.tmx"),
        ("train", "jsonl", "train.jsonl.gz"),
        ("train", "aligned", "train-00000.fr.zst", "train-00000.en"),
        ("train", "aligned", "train-00001.fr", "train-00001.en.gz"),
        ("train", "tsv", "train.part1.tsv"),
    ]
    assert not problems
    assert notes == ["corpus/fr-en/checksums.txt is not read: no known format"]


def test_the_names_of_opennmt_and_of_tables():
    names = ("src-train.txt", "tgt-train.txt.gz", "tgt-val.txt", "src-val.txt", "test.csv")
    assert listed(*names) == (
        [
            ("test", "tsv", "test.csv"),
            ("train", "aligned", "src-train.txt", "tgt-train.txt.gz"),
            ("dev", "aligned", "src-val.txt", "tgt-val.txt"),
        ],
        {},
        [],
    )


def test_the_code_of_a_file_may_have_a_region():
    expected = [("train", "aligned", "train.de_DE", "train.en_GB")]
    assert listed("train.de_DE", "train.en_GB", languages=("de", "en"))[0] == expected
    # A pair is no language with a region.
    assert listed("train.en-fr", "train.fr", "train.en")[2] == [
        "corpus/fr-en/train.en-fr is not read: no known format"
    ]


def test_files_without_a_split_are_train_if_no_other_file_is():
    moses = ("Europarl.en-fr.fr", "Europarl.en-fr.en", "Europarl.en-fr.scores", "README.en")
    # A Mac adds files such as ._dev.en to an archive.
    assert listed(*moses, "README.fr", "dev.fr", "dev.en", "._dev.fr", "._dev.en")[0] == [
        ("train", "aligned", *moses[:3]),
        ("dev", "aligned", "dev.fr", "dev.en"),
    ]
    inputs, _, notes = listed(*moses, "train.fr", "train.en")
    assert inputs == [("train", "aligned", "train.fr", "train.en")]
    assert notes[0].startswith("corpus/fr-en/Europarl.en-fr.en is not read: other files")


def test_devtest_is_test_text_unless_there_is_other_test_text():
    files = [f"{stem}.{tag}" for stem in ("dev", "devtest") for tag in ("fr", "en")]
    assert [split for split, *_ in listed(*files)[0]] == ["dev", "test"]
    assert [split for split, *_ in listed(*files, "test.fr", "test.en")[0]] == [
        "dev",
        "dev",
        "test",
    ]


def test_a_plain_file_is_read_and_not_its_compressed_copy():
    inputs, _, notes = listed("train.fr", "train.fr.gz", "train.en.gz")
    assert inputs == [("train", "aligned", "train.fr", "train.en.gz")]
    assert notes == ["corpus/fr-en/train.fr.gz is not read: train.fr is beside it"]
    for names in itertools.permutations(["train.fr.gz", "train.fr.xz", "train.en"]):
        assert listed(*names)[0] == [("train", "aligned", "train.fr.gz", "train.en")]


def test_the_codes_of_files_may_be_spelled_otherwise():
    names = ("OpenSubtitles.en-zh_cn.zh_cn", "OpenSubtitles.en-zh_cn.en")
    assert listed(*names, languages=("zh-CN", "en"))[0] == [("train", "aligned", *names)]
    assert listed("train.deu", "train.eng", languages=("de", "en"))[0] == [
        ("train", "aligned", "train.deu", "train.eng")
    ]
    # The exact code wins.
    names = ("train.zh", "train.zh-CN", "train.en")
    inputs, _, notes = listed(*names, languages=("zh-CN", "en"))
    assert inputs[0][2] == "train.zh-CN"
    (note,) = notes
    assert note.endswith("train.zh is not read: train.zh-CN is in the same language")


def test_a_side_that_is_missing_is_a_problem_of_its_split():
    _, problems, _ = listed("train.fr", "dev.en", "test.fr", "test.en")
    assert problems == {
        "train": "corpus/fr-en has train.fr but not train.en; a split needs both files.",
        "dev": "corpus/fr-en has dev.en but not dev.fr; a split needs both files.",
    }
    assert "has my.fr but not my.en" in listed("my.fr")[1]["train"]
    (note,) = listed("my.fr", "other.fr", "other.en")[2]
    assert note == "corpus/fr-en has my.fr but not my.en; a split needs both files"


PAIRS = """
fr-en fr en                 fr-de fr de            pt-BR-en pt-BR en        en-sr-Latn en sr-Latn
pt-br-en pt-BR en           zh_cn-en zh-CN en      sr-latn-bs sr-Latn bs    zh-Hant-HK-yue zh-Hant-HK yue
deu-eng de en               cz-en cs en            sh-en sr-Latn en         fra_Latn-zho_Hans fr zh
cmn-eng zh en               de_DE-en_US de en      en-en_GB en en-GB        ca-valencia-en ca-valencia en
es-419-en es-419 en
"""
NO_PAIRS = "names fr a-en xx-en my-data fr-en-small fr-fr en-eng zh-zh_CN en-AU EN-FR -en"


def test_a_name_is_split_into_tags():
    words = PAIRS.split()
    for name, source, target in zip(words[::3], words[1::3], words[2::3], strict=True):
        assert split_pair(name) == (source, target), name
    for name in (*NO_PAIRS.split(), ""):
        assert split_pair(name) is None, name


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
