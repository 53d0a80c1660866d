"""From a corpus to prepared data: what is written, when it is written again, and the errors."""

import dataclasses
import shutil

import numpy as np
import pytest

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.job import Options
from gshard_nmt.data.sets.corpus import find_pairs, read_pairs, write_pairs
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.prepare import prepare as prepare_data

CONFIG = Data(
    source_vocabulary=400,
    target_vocabulary=400,
    source_length=24,
    target_length=20,
    rows=4,
    packing_window=3,
)

RAW = Options(workers=1, cleaning=Cleaning(filters=(), duplicates=()))
"""The corpus of these tests has few words, so that most of its sentences occur more than once."""


def prepare(config, corpus, out, options=RAW):
    prepare_data(config, corpus, out, options)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    words = ["red", "green", "blue", "seven", "apple", "tree", "house", "runs", "sleeps", "fast"]
    for language, count in (("fr", 120), ("de", 40)):
        for split, number in (("train", count), ("dev", 12), ("test", 10)):
            rows = []
            for _ in range(number):
                chosen = rng.choice(words, rng.integers(1, 6))
                rows.append((" ".join(w[::-1] for w in chosen), " ".join(chosen)))
            write_pairs(root / f"{language}-en", split, language, "en", rows)
    return root


@pytest.fixture(scope="module")
def data(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("data") / "prepared"
    prepare(CONFIG, corpus, out)
    return PreparedData.open(out)


def test_the_shards_hold_the_text_of_the_corpus(corpus, data):
    source, target = (
        Vocabulary.load(data.folder / f"{side}.model") for side in ("source", "target")
    )
    assert [(pair.language, pair.splits["train"].examples) for pair in data.pairs] == [
        ("fr", 120),
        ("de", 40),
    ]
    for pair in data.pairs:
        (corpus_pair,) = [p for p in find_pairs(corpus) if p.language == pair.language]
        for split in ("train", "dev"):
            examples = data.reader(pair, split).read(np.arange(pair.splits[split].examples))
            texts = [
                vocabulary.decode([getattr(example, side).tolist() for example in examples])
                for vocabulary, side in ((source, "source"), (target, "target"))
            ]
            rows = read_pairs(corpus_pair, split, pair.source, "en")
            assert list(zip(*texts, strict=True)) == list(rows)
            counts = pair.splits[split]
            assert counts.examples == counts.pairs == len(examples)
            assert counts.source_tokens == sum(len(example.source) for example in examples)
            assert counts.target_tokens == sum(len(example.target) for example in examples)
            assert counts.spelled_tokens == 0
        assert pair.splits["test"].pairs == 10
        assert pair.splits["test"].examples == 0


def test_longer_examples_are_left_out_and_counted(corpus, tmp_path, capsys):
    config = dataclasses.replace(CONFIG, source_length=8, target_length=4)
    prepare(config, corpus, tmp_path / "prepared")
    data = PreparedData.open(tmp_path / "prepared")
    said = capsys.readouterr().err
    trains = [pair.splits["train"] for pair in data.pairs]
    pairs, left = (sum(getattr(t, name) for t in trains) for name in ("pairs", "examples"))
    (warning,) = [line for line in said.splitlines() if line.startswith("warning: ")]
    assert warning.startswith(
        f"warning: {pairs - left} of {pairs} training pairs are longer than Data.source_length = 8 or "
        "Data.target_length = 4 tokens and are left out, most of "
    )
    for pair in data.pairs:
        train = pair.splits["train"]
        assert train.pairs == (120 if pair.language == "fr" else 40)
        assert 0 < train.examples < train.pairs
        for example in data.reader(pair, "train").read(np.arange(train.examples)):
            assert len(example.source) <= 8
            assert len(example.target) <= 4


def test_preparing_again_does_nothing_unless_a_setting_that_matters_changed(
    corpus, tmp_path, capsys
):
    out = tmp_path / "prepared"
    prepare(CONFIG, corpus, out)
    before = (out / "manifest.json").stat().st_mtime_ns
    prepare(CONFIG, corpus, out)
    assert (out / "manifest.json").stat().st_mtime_ns == before
    assert "is up to date" in capsys.readouterr().err
    shard = next(out.glob("*/train*"))
    content = shard.read_bytes()
    shard.unlink()
    prepare(CONFIG, corpus, out)
    assert shard.read_bytes() == content
    before = (out / "manifest.json").stat().st_mtime_ns
    prepare(dataclasses.replace(CONFIG, rows=8), corpus, out)
    assert (out / "manifest.json").stat().st_mtime_ns == before
    prepare(dataclasses.replace(CONFIG, source_length=30), corpus, out)
    assert PreparedData.open(out).manifest["data"]["source_length"] == 30
    assert "is up to date" not in capsys.readouterr().err.split("reading")[-1]


def test_an_existing_vocabulary_counts_by_its_content(corpus, data, tmp_path, capsys):
    models = tmp_path / "models"
    models.mkdir()
    for name in ("source.model", "target.model"):
        (models / name).write_bytes((data.folder / name).read_bytes())
    out = tmp_path / "prepared"
    options = dataclasses.replace(RAW, vocabulary_of=models)
    prepare(CONFIG, corpus, out, options)
    assert (out / "source.model").read_bytes() == (models / "source.model").read_bytes()
    prepare(CONFIG, corpus, out, dataclasses.replace(RAW, vocabulary_of=out))
    assert "is up to date" in capsys.readouterr().err
    (models / "source.model").write_bytes((data.folder / "target.model").read_bytes())
    prepare(CONFIG, corpus, out, options)
    assert "is up to date" not in capsys.readouterr().err
    assert (out / "source.model").read_bytes() == (models / "source.model").read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"languages": ("frr",)}, "did you mean 'fr'?"),
        ({"minimum_pairs": 500}, "the largest are fr 120, de 40. Lower Data.minimum_pairs"),
    ],
)
def test_languages_that_are_missing_or_too_small_are_an_error(corpus, tmp_path, changes, words):
    config = dataclasses.replace(CONFIG, **changes)
    with pytest.raises(UserError, match=words):
        prepare(config, corpus, tmp_path / "prepared")
    assert not (tmp_path / "prepared").exists()


def test_a_language_with_a_missing_side_can_be_left_out(corpus, tmp_path):
    for name in ("fr-en", "de-en"):
        shutil.copytree(corpus / name, tmp_path / "corpus" / name)
    (tmp_path / "corpus" / "de-en" / "train.en.gz").unlink()
    with pytest.raises(UserError, match=r"has train[.]de[.]gz but not"):
        prepare(CONFIG, tmp_path / "corpus", tmp_path / "prepared")
    french = dataclasses.replace(CONFIG, languages=("fr",))
    prepare(french, tmp_path / "corpus", tmp_path / "prepared")
    assert [pair.folder for pair in PreparedData.open(tmp_path / "prepared").pairs] == ["fr-en"]


def test_a_folder_with_a_file_of_the_user_is_not_replaced(corpus, tmp_path):
    prepare(CONFIG, corpus, tmp_path / "prepared")
    run = tmp_path / "prepared" / "my run" / "checkpoint"
    run.parent.mkdir()
    run.write_text("days of work")
    longer = dataclasses.replace(CONFIG, source_length=30)
    with pytest.raises(
        UserError, match=r"would be replaced, but my run/checkpoint in it is not from"
    ):
        prepare(longer, corpus, tmp_path / "prepared")
    assert run.read_text() == "days of work"


def test_a_wrong_vocabulary_is_an_error_before_the_corpus_is_read(corpus, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    out = tmp_path / "prepared"
    with pytest.raises(UserError) as error:
        prepare(CONFIG, corpus, out, dataclasses.replace(RAW, vocabulary_of=folder))
    assert str(error.value) == (
        f"--vocabulary_of {folder} has no source.model, so it is neither prepared data nor a run "
        "folder. Give a folder that gshard-data prepare, gshard-train or gshard-export made."
    )
    assert list(tmp_path.iterdir()) == [folder]


def test_data_is_not_made_inside_of_a_corpus(corpus):
    with pytest.raises(
        UserError, match=r"prepared is inside of --corpus .* nothing is written into"
    ):
        prepare(CONFIG, corpus, corpus / "prepared")
    assert not (corpus / "prepared").exists()


def test_a_folder_with_other_files_is_not_replaced(corpus, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(
        UserError, match="is not empty and not prepared data; choose another folder"
    ):
        prepare(CONFIG, corpus, tmp_path)
    assert (tmp_path / "thesis.txt").exists()
