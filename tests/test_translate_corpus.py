"""gshard-data translate: which translations become pairs of a corpus, and the files of an input."""

import json
from pathlib import Path

import pytest

from gshard_nmt.data.sets.corpus import find_pairs, read_pairs
from gshard_nmt.errors import UserError
from gshard_nmt.translate_corpus import Files, translate_corpus

LINES = [
    ("the file is not there", [("le fichier n'est pas là", -0.5), ("pas de fichier ici", -2.0)]),
    ("", [("", 0.0)]),
    ("open\tthe door", [("ouvrez la porte", -1.0)]),
    ("close it", [("le le le le le le", -1.5)]),
    ("a copy of a line", [("a copy of a line", -0.2)]),
    ("no", [("non non, pas du tout, et encore moins ici, car tout est dit, et plus", -0.9)]),
]


def decoded(folder, back: bool = False, lines=LINES, target: str = "fr") -> Files:
    """Writes translations as gshard-decode does."""
    files = Files.of_input(folder / "out", ("en", target), Path("news"), back)
    files.decoded.parent.mkdir(parents=True)
    records = [
        {"line": n, "source": s, "translations": [{"text": t, "score": x} for t, x in best]}
        for n, (s, best) in enumerate(lines, 1)
    ]
    files.decoded.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return files


def test_bad_translations_are_dropped_and_counted_by_filter(tmp_path, capsys):
    report = translate_corpus(decoded(tmp_path), min_score=-1.8)
    assert (report.lines, report.translations, report.passed) == (6, 7, 2)
    assert report.dropped == {"empty": 1, "loop": 1, "identical": 1, "ratio": 1, "score": 1}
    (pair,) = find_pairs(tmp_path / "out")
    assert pair.name == "en-fr"
    assert list(read_pairs(pair, "train", "en", "fr")) == [
        ("the file is not there", "le fichier n'est pas là"),
        ("open the door", "ouvrez la porte"),
    ]
    out = capsys.readouterr().out
    assert "6 lines, 7 translations; 2 passed (28.6%)" in out
    assert "5% below -2.00, 10% below -2.00, 25% below -1.50, 50% below -0.90" in out
    assert "dropped by filter: " in out


def test_other_limits_drop_other_pairs_of_the_same_translations(tmp_path):
    files = decoded(tmp_path)
    assert translate_corpus(files).passed == 3
    assert translate_corpus(files, max_ratio=10).passed == 4
    assert translate_corpus(files, min_score=-0.6).passed == 1
    assert len(files.pairs.read_text().splitlines()) == 2


def test_it_is_an_error_if_no_translation_passes(tmp_path):
    files = decoded(tmp_path, lines=LINES[1:2])
    with pytest.raises(UserError) as error:
        translate_corpus(files)
    assert str(error.value) == (
        f"none of the 1 translations in {files.decoded} passes the filters (empty 1). Lower --min_score, "
        "raise --max_ratio, or train the model longer."
    )
    assert not files.pairs.parent.exists() or not list(files.pairs.parent.iterdir())
    files.pairs.write_text("of the run before\n")
    with pytest.raises(UserError):
        translate_corpus(files)
    assert files.pairs.read_text() == "of the run before\n"


def test_the_files_have_the_name_of_the_input(tmp_path):
    files = Files.of_input(tmp_path, ("en", "fr"), Path("texts/news.2024.en.gz"), True)
    assert files.pairs == tmp_path / "fr-en" / "train-news-2024-en--back.tsv"
    assert files.decoded == tmp_path / "translations" / "en-fr" / "news-2024-en.jsonl"
    for file, name in (("(news).en", "news-en"), ("+.gz", "text")):
        files = Files.of_input(tmp_path, ("en", "fr"), Path(file), False)
        assert files.decoded.stem == name


def test_translations_are_reused_only_if_nothing_else_was_translated(tmp_path):
    files = decoded(tmp_path)
    made_of = {"file": "/text/news", "input": "ab12", "checkpoint": "step 5"}
    assert not files.holds(made_of)
    files.record(made_of)
    translate_corpus(files)
    assert files.holds(made_of)
    assert not files.holds({**made_of, "checkpoint": "step 6"})
    assert not files.holds({"file": "/text/news", "input": "ab12"})
    with pytest.raises(
        UserError, match="has the translations of /text/news, which has the same name as"
    ):
        files.holds({**made_of, "file": "/other/news"})
    for content in ("damaged", '{"made_of": 3}'):
        files.facts.write_text(content)
        assert not files.holds(made_of)
    files.record(made_of)
    assert files.holds(made_of)
    files.decoded.unlink()
    with pytest.raises(UserError, match="has the same name as"):
        files.holds({**made_of, "file": "/other/news"})
    assert not files.holds(made_of)


def test_filters_know_the_languages_of_both_sides_of_a_back_translation(tmp_path):
    """The filter of scripts expects Cyrillic letters on the source side of these pairs."""
    files = decoded(tmp_path, back=True, target="ru", lines=[("a file", [("это файл", -0.5)])])
    assert translate_corpus(files).passed == 1
