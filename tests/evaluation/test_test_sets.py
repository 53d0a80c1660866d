"""Published test sets are recognized by their files, and only the run's directions are read."""

import gzip

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.evaluation import test_sets


def make(folder, names, lines=3):
    """Writes files whose lines name the file."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name} {n}\n" for n in range(lines)).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)


def pairs(*directions):
    return [
        {"language": source if source != "en" else target, "source": source, "target": target}
        | {"train_pairs": 7}
        for source, target in (direction.split(">") for direction in directions)
    ]


FLORES = ["fra_Latn", "eng_Latn", "zho_Hans", "zho_Hant", "srp_Cyrl", "nob_Latn"]


@pytest.mark.parametrize("split", ["test", "dev"])
def test_flores(tmp_path, split):
    for name in ("dev", "devtest"):
        make(tmp_path, [f"{name}/{code}.{name}" for code in FLORES])
    published = test_sets.open_folder(tmp_path, split)
    assert published.tags == ["en", "fr", "nb", "sr", "zh", "zh-Hant"]
    assert published.notes == []
    assert len(published.directions) == 6 * 5
    name = "devtest" if split == "test" else "dev"
    assert published.name == f"flores.{name}"
    run = pairs("fr>en", "en>zh-TW", "zh-CN>en")
    (french, chinese, simplified), notes = test_sets.read(published, run, 2)
    assert (french.language, french.source, french.target) == ("fr", "fr", "en")
    assert french.train_pairs == 7
    assert french.sources == [f"{name}/fra_Latn.{name} {n}" for n in range(2)]
    assert french.references == [f"{name}/eng_Latn.{name} {n}" for n in range(2)]
    assert (chinese.source, chinese.target) == ("en", "zh-TW")
    assert chinese.references[0].startswith(f"{name}/zho_Hant")
    assert simplified.sources[0].startswith(f"{name}/zho_Hans")
    assert notes == ["the run was not trained on nb, sr, so they are left out"]


def test_the_folder_of_one_split_of_flores_plus(tmp_path):
    make(tmp_path, ["devtest.fra_Latn", "devtest.eng_Latn", "devtest.cat_Latn_vale1252", "x.md"])
    assert test_sets.open_folder(tmp_path).tags == ["ca-valencia", "en", "fr"]


def test_plain_files(tmp_path):
    make(tmp_path, ["SRC.de", "REF.en", "REF2.en.gz", "ref.fr.txt"])
    (test,), notes = test_sets.read(test_sets.open_folder(tmp_path), pairs("de>en", "it>en"))
    assert test.sources[0] == "SRC.de 0"
    assert [lines[0] for lines in test.all_references] == ["REF.en 0", "REF2.en.gz 0"]
    assert notes == [
        "the test set has no text of it-en, which the run was trained on",
        "the run was not trained on fr, so they are left out",
    ]


def test_a_language_may_have_files_of_both_sides(tmp_path):
    make(tmp_path, ["src.de", "ref.de", "src.en", "ref.en"])
    tests, notes = test_sets.read(test_sets.open_folder(tmp_path), pairs("de>en", "en>de"))
    assert [test.sources[0] for test in tests] == ["src.de 0", "src.en 0"]
    assert not notes


def test_unknown_codes_are_named(tmp_path):
    make(tmp_path, [f"devtest/{code}.devtest" for code in ("eng_Latn", "qqq_Latn", "qqr", "x!")])
    make(tmp_path, ["devtest/eng.devtest"])
    assert test_sets.open_folder(tmp_path).notes == [
        "eng_Latn.devtest is left out, because en has another file",
        "the code qqq_Latn of qqq_Latn.devtest is unknown; it is used as qqq",
        "the code qqr of qqr.devtest is unknown; it is used as qqr",
        "x!.devtest is left out, because 'x!' is not a language code",
    ]


def test_a_folder_without_a_test_set_is_an_error(tmp_path):
    make(tmp_path, ["readme.txt"])
    with pytest.raises(UserError, match=r"has no known test set. It must have files such as dev"):
        test_sets.open_folder(tmp_path)
    with pytest.raises(UserError, match="has no known test set for --split dev"):
        test_sets.open_folder(tmp_path, "dev")


def test_a_test_set_of_other_directions_is_an_error(tmp_path):
    make(tmp_path, ["src.de", "ref.en"])
    with pytest.raises(UserError) as raised:
        test_sets.read(test_sets.open_folder(tmp_path), pairs("fr>en"))
    assert str(raised.value) == (
        f"--test_set {tmp_path} has de, en, and the run was trained on fr-en. Give a test set with a "
        "direction of the run."
    )


def test_files_of_other_lengths_and_empty_files_are_errors(tmp_path):
    make(tmp_path, ["src.de", "ref.en"])
    make(tmp_path, ["ref2.en"], lines=2)
    published = test_sets.open_folder(tmp_path)
    words = "de-en is not scored: .*/src.de has 3 lines, .*/ref2.en has 2. Line N of one file must"
    with pytest.raises(UserError, match=words):
        test_sets.read(published, pairs("de>en"))
    (tmp_path / "ref2.en").unlink()
    make(tmp_path, ["src.fr"])
    make(tmp_path, ["src.de"], lines=2)
    (test,), notes = test_sets.read(test_sets.open_folder(tmp_path), pairs("de>en", "fr>en"))
    assert (test.source, notes[0][:20]) == ("fr", "de-en is not scored:")
    make(tmp_path, ["src.de"], lines=0)
    with pytest.raises(UserError, match=r"src.de is empty; it must have a line for each sentence."):
        test_sets.read(test_sets.open_folder(tmp_path), pairs("de>en"))
