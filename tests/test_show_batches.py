"""Batches as text: what is printed is what training sees."""

import dataclasses
import functools
import json

import numpy as np
import pytest

from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.batching.packing import to_arrays
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.examples import Example
from gshard_nmt.data.sets.manifest import PreparedPair
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import EOS, UNK, VocabularySpec, train_vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.prepare import prepare
from gshard_nmt.show_batches import describe_row, show_batches
from tests.data.cleaning import corpora

CONFIG = Data(
    direction="many-to-many",
    source_vocabulary=500,
    target_vocabulary=500,
    source_length=96,
    target_length=96,
    rows=4,
    packing_window=3,
)

show = functools.partial(show_batches, batches=1, rows=4, step=1, pieces=False, as_json=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("show")
    corpora.write_corpus(root / "corpus")
    prepare(CONFIG, root / "corpus", root / "data")
    return root / "data"


def printed_rows(capsys, folder, **arguments) -> list[dict]:
    show(CONFIG, folder, as_json=True, **arguments)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_rows_are_those_of_training(capsys, folder):
    rows = printed_rows(capsys, folder, batches=2, rows=0, step=3)
    batches = TrainBatches(PreparedData.open(folder), CONFIG)
    expected = [next(batches) for _ in range(4)][2:]
    batches.close()
    assert [(row["step"], row["row"]) for row in rows] == [
        (s, r) for s in (3, 4) for r in range(1, 5)
    ]
    for row, (arrays, r) in zip(rows, [(a, r) for a in expected for r in range(4)], strict=True):
        assert row["source_filled"] == (arrays["source_segments"][r] > 0).sum()
        assert row["target_filled"] == (arrays["target_segments"][r] > 0).sum()
        assert len(row["segments"]) == arrays["source_segments"][r].max()
        tokens = [segment["target_tokens"] for segment in row["segments"]]
        assert tokens == np.bincount(arrays["target_segments"][r])[1:][: len(tokens)].tolist()


def test_the_text_is_that_of_the_corpus_and_the_direction_is_known(capsys, folder):
    texts = {
        (f"{language}-en" if side == 0 else f"en-{language}"): {
            (row[side], row[1 - side]) for row in corpora.rows_of(language)["train"]
        }
        for language in corpora.LETTERS
        for side in (0, 1)
    }
    segments = [s for row in printed_rows(capsys, folder, batches=3) for s in row["segments"]]
    assert {segment["pairs"][0] for segment in segments} == set(texts)
    for segment in segments:
        (pair,) = segment["pairs"]
        tag = f"<2{pair.split('-')[1]}> "
        assert segment["source"].startswith(tag)
        assert (segment["source"].removeprefix(tag), segment["target"]) in texts[pair]


def test_a_changed_example_has_its_text_before(capsys, folder):
    changing = dataclasses.replace(CONFIG, augmentation={"title": 0.5, "values": 0.5})
    show(changing, folder, batches=4, as_json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    segments = [segment for row in rows for segment in row["segments"]]
    texts = {row for language in corpora.LETTERS for row in corpora.rows_of(language)["train"]}
    changed = [segment for segment in segments if "augmentation" in segment]
    for segment in changed:
        assert {tuple(segment["before"]), tuple(segment["before"][::-1])} & texts
        assert set(segment["augmentation"]) <= {"title", "values"}
    assert 0.3 < len(changed) / len(segments) < 0.9
    show(changing, folder, rows=0)
    assert "; before: " in capsys.readouterr().out


def test_text_shows_padding_and_marks_characters_that_the_vocabulary_lacks(capsys, folder):
    show(CONFIG, folder, rows=2)
    out = capsys.readouterr().out
    assert "step 1, row 2: " in out
    assert "\x1b" not in out
    show(CONFIG, folder, pieces=True)
    assert "</s>" in capsys.readouterr().out


def test_steps_that_nobody_reaches_are_refused(folder):
    with pytest.raises(UserError, match="and all batches before are drawn"):
        show(CONFIG, folder, step=10**19)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "v.model"
    spec = VocabularySpec(400, tags=("<2en>", "<2fr>", "<subset:web>"), coverage=1.0)
    return train_vocabulary(["a red house", "two red trees", "the house of trees"] * 20, spec, path)


def segment(vocabulary, ids, pairs=()):
    example = Example(np.array(ids), np.array([*vocabulary.encode(["red"])[0], EOS]), 1)
    first = {name: array[0] for name, array in to_arrays([[example]], 40, 20).items()}
    row = describe_row(first, pairs, ["fr", "de"], (vocabulary, vocabulary))
    assert (row["source_positions"], row["target_positions"]) == (40, 20)
    return row["segments"][0]


def test_bytes_are_joined_to_characters_and_marked(vocabulary):
    ids = vocabulary.encode(["red 東 house"])[0]
    result = segment(vocabulary, [*ids, UNK, EOS])
    assert result["source"] == "red ⟦東⟧ house⟦<unk>⟧"
    assert (result["source_tokens"], result["source_fallback"]) == (len(ids) + 2, 4)


def test_the_tag_of_a_subset_tells_the_subset(vocabulary):
    pairs = [PreparedPair("de", "en", "de", {}), PreparedPair("de", "en", "de", {}, subset="web")]
    tags = [vocabulary.tag("<2en>"), vocabulary.tag("<subset:web>")]
    text = vocabulary.encode(["red"])[0]
    assert segment(vocabulary, [tags[0], *text, EOS], pairs)["pairs"] == ["de-en"]
    assert segment(vocabulary, [*tags, *text, EOS], pairs)["pairs"] == ["de-en.web"]
