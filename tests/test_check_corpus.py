"""Every fault that is put into a clean corpus is found and named, and nothing is found without one."""

import json
import shutil

import pytest

from gshard_nmt.check_corpus import check_corpus
from gshard_nmt.data.cleaning.findings import ADVICE, Example
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


def kinds(corpus, **arguments) -> set[tuple[str, str]]:
    """The places and kinds of the findings."""
    return {(finding.place, finding.kind) for finding in check_corpus(corpus, **arguments)}


def test_a_clean_corpus_has_no_finding(clean, capsys):
    assert kinds(clean) == set()
    assert "nothing looks wrong in 3 pairs with 1,500 lines" in capsys.readouterr().out


def swapped(rows):
    return rows | {"train": [(b, a) for a, b in rows["train"]]}


def swapped_dev(rows):
    return rows | {"dev": [(b, a) for a, b in rows["dev"]]}


def shifted(rows):
    first, second = zip(*rows["train"], strict=True)
    return rows | {"train": list(zip(first[:-1], second[:200] + second[201:], strict=True))}


def shuffled(rows):
    first, second = zip(*rows["train"], strict=True)
    return rows | {"train": list(zip(first, second[200:] + second[:200], strict=True))}


def other_language(rows):
    german = corpora.sentences("de", 400, "more")
    return rows | {"train": [(g[0], g[1]) for g in german]}


def other_dev_language(rows):
    return rows | {"dev": corpora.sentences("de", 60, "more")}


def english(rows):
    english = corpora.sentences("de", 400, "more")
    return rows | {"train": [(e[1], b) for e, (_, b) in zip(english, rows["train"], strict=True)]}


def not_english(rows):
    german = corpora.sentences("de", 400, "more")
    return rows | {"train": [(a, g[0]) for g, (a, _) in zip(german, rows["train"], strict=True)]}


def other_script(rows):
    russian = corpora.sentences("ru", 400, "more")
    return rows | {"train": russian}


def some_german(rows):
    german = corpora.sentences("de", 100, "more")
    return rows | {"train": rows["train"][100:] + german}


def some_copies(rows):
    return rows | {"train": [(b, b) for _, b in rows["train"][:60]] + rows["train"][60:]}


def some_empty(rows):
    return rows | {"train": [*rows["train"], ("", "text"), ("text", " ")]}


def mojibake(rows):
    broken = [(a.encode().decode("latin-1"), b) for a, b in rows["train"][:20]]
    return rows | {"train": rows["train"][20:] + broken}


def decomposed(rows):
    changed = [(f"{a} e\u0301", b) for a, b in rows["train"][-9:]]
    return rows | {"train": rows["train"][:-9] + changed}


def very_long(rows):
    return rows | {"train": rows["train"] + [(a * 40, b * 40) for a, b in rows["train"][-4:]]}


def numbers_only(rows):
    return rows | {"train": [(f"{n} %", f"{n} %") for n in range(60)] + rows["train"]}


def cut_off(rows):
    return rows | {"train": [(a, b[: len(b) // 8]) for a, b in rows["train"][:90]] + rows["train"]}


def repeated(rows):
    return rows | {"train": rows["train"] + rows["train"][:10] * 20}


def leaked(rows):
    return rows | {"train": rows["train"] + rows["test"][:10]}


def nearly_leaked(rows):
    changed = [(f"{a} {a[:4]}", f"{b} {b[:4]}") for a, b in rows["dev"][:20]]
    return rows | {"train": rows["train"] + changed}


FAULTS = {
    swapped: ("train", "swapped"),
    swapped_dev: ("dev", "swapped"),
    shifted: ("train", "shifted"),
    shuffled: ("train", "unrelated"),
    other_language: ("train", "same_text"),
    other_dev_language: ("dev", "wrong_language"),
    english: ("train", "same_text"),
    not_english: ("train", "wrong_language"),
    other_script: ("train", "wrong_script"),
    some_german: ("train", "mixed_languages"),
    cut_off: ("train", "odd_ratio"),
}


LINE_FAULTS = {
    mojibake: ("train", "mojibake"),
    decomposed: ("train", "decomposed"),
    very_long: ("train", "long"),
    some_copies: ("train", "copies"),
    some_empty: ("train", "empty"),
    numbers_only: ("train", "no_letters"),
    repeated: ("train", "duplicates"),
    leaked: ("test", "leak"),
    nearly_leaked: ("dev", "leak"),
}


def test_faults_of_lines_are_found_and_named(corpus):
    rows = corpora.rows_of("fr")
    for fault in LINE_FAULTS:
        rows = fault(rows)
    corpora.write(corpus, "fr", rows)
    assert kinds(corpus) == {(f"fr-en {split}", kind) for split, kind in LINE_FAULTS.values()}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_and_named(corpus, fault):
    corpora.write(corpus, "fr", fault(corpora.rows_of("fr")))
    split, kind = FAULTS[fault]
    places = kinds(corpus)
    assert (f"fr-en {split}", kind) in places
    # A fault of one pair does not make the other pairs suspicious.
    assert {place.split()[0] for place, _ in places} == {"fr-en"}


def test_faults_of_files_are_found(corpus):
    (corpus / "de-en" / "test.de.gz").unlink()
    (corpus / "de-en" / "test.en.gz").unlink()
    (corpus / "de-en" / "tset.de").write_text("eins\n")
    (corpus / "fr-en" / "dev.en.gz").unlink()
    (corpus / "ru-en" / "train.en.gz").unlink()
    (corpus / "ru-en" / "train.en").write_text("only one line\n")
    assert kinds(corpus) == {
        ("de-en test", "missing"),
        ("de-en", "unused_files"),
        ("fr-en dev", "missing"),
        ("ru-en train", "unreadable"),
    }


def test_the_place_of_a_shift_is_told(corpus):
    corpora.write(corpus, "fr", shifted(corpora.rows_of("fr")))
    (finding,) = check_corpus(corpus)
    assert finding.files == ("train.fr.gz", "train.en.gz")
    first = int(finding.what.split()[1].replace(",", ""))
    assert abs(first - 201) <= 5
    assert "line N of fr belongs to line N - 1 of en" in finding.what
    assert finding.examples


def test_the_same_languages_twice_are_found(corpus):
    shutil.copytree(corpus / "fr-en", corpus / "en-fr")
    assert ("fr-en", "twice") in kinds(corpus)


def test_the_report_names_the_findings_without_their_code(corpus, tmp_path, capsys):
    rows = corpora.rows_of("fr")
    rows["train"][7] = ("<b>\x1b[31mrouge", "")
    corpora.write(corpus, "fr", rows)
    check_corpus(corpus, report=tmp_path / "check.json")
    printed = capsys.readouterr().out
    assert "<b>\\x1b[31mrouge" in printed
    assert "\x1b" not in printed
    report = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))
    (entry,) = report["findings"]
    assert (entry["kind"], entry["examples"][0]["line"]) == ("empty", 8)
    assert entry["advice"] == ADVICE["empty"]
    assert {"pair": "fr-en", "split": "train", "lines": 400, "sample": 399} in report["splits"]


def test_strict_makes_findings_an_error(clean, corpus):
    check_corpus(clean, strict=True)
    corpora.write(corpus, "fr", some_empty(corpora.rows_of("fr")))
    with pytest.raises(UserError, match="1 thing looks wrong and --strict was given"):
        check_corpus(corpus, strict=True)


def test_a_config_chooses_the_languages(corpus):
    corpora.write(corpus, "fr", some_empty(corpora.rows_of("fr")))
    assert kinds(corpus, config=Data(languages=("de",))) == set()
    with pytest.raises(UserError, match=r"Data\.languages names 'it', which"):
        check_corpus(corpus, Data(languages=("it",)))


def test_corpora_with_names_are_checked_together(clean, tmp_path, capsys):
    test = corpora.rows_of("fr")["test"]
    rows = corpora.sentences("fr", 200, "back") + test[5:15]
    write_pairs(tmp_path / "en-fr", "train", "en", "fr", [row[::-1] for row in rows])
    report = tmp_path / "check.json"
    # dev and test of the subset are those of the main corpus, so they are not missing.
    (finding,) = check_corpus({"": clean, "back": tmp_path}, report=report)
    assert (finding.place, finding.kind) == ("fr-en test", "leak")
    assert "10 of 40 lines of test are in the training text of en-fr.back on both" in finding.what
    assert finding.examples[0] == Example(6, *test[5])
    splits = [(s["pair"], s["split"]) for s in json.loads(report.read_text())["splits"]]
    assert ("en-fr.back", "train") in splits
    assert f"{clean}, {tmp_path}: 1 thing looks wrong in 4 pairs" in capsys.readouterr().out
