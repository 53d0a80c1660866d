"""Batches as text: what is printed is what training sees."""

import json

import numpy as np
import pytest

from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.prepare import prepare
from gshard_nmt.show_batches import show_batches
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("show")
    corpora.write_corpus(root / "corpus")
    prepare(CONFIG, root / "corpus", root / "data")
    return root / "data"


def printed_rows(capsys, folder, **arguments) -> list[dict]:
    show_batches(CONFIG, folder, as_json=True, **arguments)
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


def test_text_shows_padding_and_marks_characters_that_the_vocabulary_lacks(capsys, folder):
    show_batches(CONFIG, folder, rows=2)
    out = capsys.readouterr().out
    assert "step 1, rows 1 to 2 of 4: " in out
    assert "row 2: " in out
    assert "\x1b" not in out
    show_batches(CONFIG, folder, pieces=True)
    assert "</s>" in capsys.readouterr().out
