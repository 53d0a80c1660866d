"""Every fault that is put into a clean corpus is found and named, and nothing is found without one."""

import gzip
import json
import re
import shutil

import pytest

from gshard_nmt.check_corpus import check_corpus
from gshard_nmt.data.cleaning.scan import ADVICE, Example
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.errors import UserError
from tests.data.cleaning import corpora


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    corpora.write_corpus(folder)
    return folder


@pytest.fixture
def corpus(clean, tmp_path):
    return shutil.copytree(clean, tmp_path / "corpus")


def checked(corpus, config=None, report=None, strict=False):
    return check_corpus({"": corpus}, config, report, strict)


def kinds(corpus, **arguments) -> set[tuple[str, str]]:
    """The places and kinds of the findings."""
    return {(finding.place, finding.kind) for finding in checked(corpus, **arguments)}


def test_a_clean_corpus_has_no_finding(clean, capsys):
    assert kinds(clean) == set()
    assert "nothing looks wrong in 3 pairs with 1,500 lines" in capsys.readouterr().out


GERMAN = corpora.sentences("de", 400, "more")


def paired(firsts, seconds):
    """Returns the first sides of some rows with the second sides of others."""
    return [(first, second) for (first, _), (_, second) in zip(firsts, seconds, strict=True)]


def turned(rows):
    return [(b, a) for a, b in rows]


def shifted(rows):
    return paired(rows[:-1], rows[:200] + rows[201:])


def some_empty(rows):
    return [*rows, ("", "text"), ("text", " ")]


FAULTS = {
    "swapped": ("train", "swapped", turned),
    "shifted": ("train", "shifted", shifted),
    "shuffled": ("train", "unrelated", lambda rows: paired(rows, rows[200:] + rows[:200])),
    "other language": ("train", "wrong_language", lambda rows: GERMAN),
    "other dev language": ("dev", "wrong_language", lambda rows: corpora.sentences("de", 60, "more")),
    "English": ("train", "wrong_language", lambda rows: paired(turned(GERMAN), rows)),
    "not English": ("train", "wrong_language", lambda rows: paired(rows, turned(GERMAN))),
    "other script": ("train", "wrong_script", lambda rows: corpora.sentences("ru", 400, "more")),
    "cut off": ("train", "odd_ratio", lambda rows: [(a, b[: len(b) // 8]) for a, b in rows[:90]] + rows),
}  # fmt: skip
"""Faults of one split: the split, the kind of the finding, and the function that makes the fault."""

LINE_FAULTS = {
    "mojibake": lambda rows: rows[20:] + [(a.encode().decode("latin-1"), b) for a, b in rows[:20]],
    "long": lambda rows: rows + [(a * 40, b * 40) for a, b in rows[-4:]],
    "copies": lambda rows: [(b, b) for _, b in rows[:60]] + rows[60:],
    "empty": some_empty,
}
"""Faults of lines of the training text, one after the other."""


def test_faults_of_lines_are_found_and_named(corpus, capsys):
    rows = corpora.rows_of("fr")
    train = rows["train"]
    for fault in LINE_FAULTS.values():
        train = fault(train)
    near = [(f"{a} {a[:4]}", f"{b} {b[:4]}") for a, b in rows["dev"][:20]]
    corpora.write(corpus, "fr", rows | {"train": train + rows["test"][:10] + near})
    (corpus / "fr-en" / "train-2.tsv").write_text("du texte\ttext\n")
    found = {("fr-en train", kind) for kind in LINE_FAULTS}
    assert kinds(corpus) == found | {("fr-en test", "leak"), ("fr-en dev", "leak")}
    train, *_, test = capsys.readouterr().out.split(": leak (")
    assert ("\n    row " in train, "\n    line " in test) == (True, True)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(corpus, name):
    split, kind, fault = FAULTS[name]
    rows = corpora.rows_of("fr")
    corpora.write(corpus, "fr", rows | {split: fault(rows[split])})
    places = kinds(corpus)
    assert (f"fr-en {split}", kind) in places
    # A fault of one pair makes no other pair suspicious, but for one with the same text.
    suspicious = {"fr-en", "de-en"} if name == "other language" else {"fr-en"}
    assert {place.split()[0] for place, _ in places} == suspicious


def test_faults_of_files_are_found(corpus, capsys):
    for side in ("de", "en"):
        (corpus / "de-en" / f"test.{side}.gz").unlink()
        (corpus / "de-en" / f"dev.{side}.gz").write_bytes(gzip.compress(b""))
    (corpus / "de-en" / "tset.text").write_text("eins\n")
    (corpus / "fr-en" / "dev.en.gz").unlink()
    (corpus / "ru-en" / "train.en.gz").unlink()
    (corpus / "ru-en" / "train.en").write_text("only one line\n")
    assert kinds(corpus) == {
        ("de-en test", "missing"),
        ("de-en dev", "missing"),
        ("fr-en dev", "missing"),
        ("ru-en train", "unreadable"),
    }
    assert "tset.text is not read: no known format" in capsys.readouterr().out


def test_the_place_of_a_shift_is_told(corpus):
    rows = corpora.rows_of("fr")
    corpora.write(corpus, "fr", rows | {"train": shifted(rows["train"])})
    (finding,) = checked(corpus)
    assert finding.files == ("train.fr.gz", "train.en.gz")
    assert finding.what.startswith("About lines 201 to 399 look shifted: ")
    assert "line N of fr belongs to line N - 1 of en" in finding.what
    assert finding.examples


def test_the_report_names_the_findings_without_their_code(corpus, tmp_path, capsys):
    rows = corpora.rows_of("fr")
    rows["train"][7] = ("<b>\x1b[31mrouge", "")
    corpora.write(corpus, "fr", rows)
    checked(corpus, report=tmp_path / "check.json")
    printed = capsys.readouterr().out
    assert "<b>\\x1b[31mrouge" in printed
    assert "\x1b" not in printed
    (entry,) = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["findings"]
    assert (entry["kind"], entry["examples"][0]["line"]) == ("empty", 8)
    assert entry["advice"] == ADVICE["empty"]


def test_strict_makes_findings_an_error(clean, corpus):
    checked(clean, strict=True)
    rows = corpora.rows_of("fr")
    corpora.write(corpus, "fr", rows | {"train": some_empty(rows["train"])})
    with pytest.raises(UserError, match="1 thing looks wrong and --strict was given"):
        checked(corpus, strict=True)


def test_a_config_chooses_the_languages(corpus):
    rows = corpora.rows_of("fr")
    corpora.write(corpus, "fr", rows | {"train": some_empty(rows["train"])})
    assert kinds(corpus, config=Data(languages=("de",))) == set()
    with pytest.raises(UserError, match=r"Data\.languages names 'it', which"):
        checked(corpus, config=Data(languages=("it",)))


def test_a_config_chooses_a_pair_as_it_is_named(corpus):
    shutil.copytree(corpus / "fr-en", corpus / "en-fr")
    assert kinds(corpus, config=Data(direction="as-named", languages=("fr-en",))) == set()


def test_text_that_is_too_long_for_a_row_is_named_in_one_line(corpus, capsys):
    rows = corpora.rows_of("fr")
    long = [
        (f"{first} {'mot ' * 62}{n}", second)
        for n, (first, second) in enumerate(rows["train"][:30])
    ]
    corpora.write(corpus, "fr", rows | {"train": [*rows["train"], *long]})
    checked(corpus)
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "Data." in line]
    assert re.match(
        r"note: about 30 of [\d,]+ training pairs are longer than Data.source_length = 64 or "
        r"Data.target_length = 64 tokens, and gshard-data prepare would leave them out. Raise both",
        note,
    )
    checked(corpus, config=Data(source_length=128))
    assert "Data." not in capsys.readouterr().out


def test_corpora_with_names_are_checked_together(clean, tmp_path, capsys):
    test = corpora.rows_of("fr")["test"]
    rows = corpora.sentences("fr", 200, "back") + test[5:15]
    write_pairs(tmp_path / "en-fr", "train", "en", "fr", [row[::-1] for row in rows])
    # dev and test of the subset are those of the main corpus, so they are not missing.
    (finding,) = check_corpus({"": clean, "back": tmp_path}, None, None, False)
    assert (finding.place, finding.kind) == ("fr-en test", "leak")
    assert "10 of 40 lines of test are in the training text of en-fr.back on both" in finding.what
    assert finding.examples[0] == Example(6, *test[5])
    assert f"{clean}, {tmp_path}: 1 thing looks wrong in 4 pairs" in capsys.readouterr().out


def test_text_that_two_places_lack_is_missing_once(tmp_path):
    rows = corpora.sentences("fr", 200, "more")
    for split in ("train", "dev"):
        write_pairs(tmp_path / split / "fr-en", split, "fr", "en", rows)
    findings = check_corpus({"": tmp_path / "train", "more": tmp_path / "dev"}, None, None, False)
    missing = [finding.place for finding in findings if finding.kind == "missing"]
    assert missing == ["fr-en test", "fr-en.more train"]
