"""From a corpus to batches: nothing lost, exact resume, and errors that say what to do."""

import numpy as np
import pytest

from gshard_nmt.data.batches import TrainBatches, dev_batches, dev_examples
from gshard_nmt.data.config import Data
from gshard_nmt.data.corpus import write_pairs
from gshard_nmt.data.shards import PreparedData
from gshard_nmt.data.vocabulary import BOS, EOS, Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.prepare import prepare

CONFIG = Data(
    source_vocabulary=400,
    target_vocabulary=400,
    source_length=24,
    target_length=20,
    rows=4,
    packing_window=3,
)


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


def take(batches: TrainBatches, number: int):
    found = [next(batches) for _ in range(number)]
    state = batches.state()
    batches.close()
    return found, state


def unpack(arrays) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The examples of a batch, row by row."""
    found = []
    for row in range(len(arrays["source_ids"])):
        segments = arrays["source_segments"][row].max()
        for segment in range(1, segments + 1):
            source = arrays["source_ids"][row][arrays["source_segments"][row] == segment]
            target = arrays["target_labels"][row][arrays["target_segments"][row] == segment]
            found.append((tuple(source.tolist()), tuple(target.tolist())))
    return found


def test_batches_hold_whole_examples_of_the_data(data):
    known = set()
    for pair in data.pairs:
        reader = data.reader(pair, "train")
        for example in reader.read(np.arange(len(reader))):
            known.add((tuple(example.source.tolist()), tuple(example.target.tolist())))
    ((arrays, info), (second, _)), _ = take(TrainBatches(data, CONFIG), 2)
    examples = unpack(arrays)
    assert set(examples) <= known
    assert len(examples) > CONFIG.rows
    assert unpack(second) != examples
    real = (arrays["source_segments"] > 0).sum() + (arrays["target_segments"] > 0).sum()
    assert sum(info.tokens.values()) == real == sum(len(s) + len(t) for s, t in examples)
    for side in ("source", "target"):
        starts = arrays[f"{side}_positions"] == 0
        np.testing.assert_array_equal(arrays[f"{side}_segments"][~starts] > 0, True)
    begins = (arrays["target_positions"] == 0) & (arrays["target_segments"] > 0)
    assert (arrays["target_inputs"][begins] == BOS).all()
    inside = arrays["target_positions"] > 0
    np.testing.assert_array_equal(
        arrays["target_inputs"][inside], np.roll(arrays["target_labels"], 1, axis=1)[inside]
    )


def test_an_epoch_shows_each_example_of_a_language_about_once(data):
    import dataclasses

    config = dataclasses.replace(CONFIG, languages=("de",))
    found, _ = take(TrainBatches(data, config), 30)
    counts: dict = {}
    for arrays, _ in found:
        for example in unpack(arrays):
            counts[example] = counts.get(example, 0) + 1
    reader = data.reader(data.pairs_of(config)[0], "train")
    distinct = {
        (tuple(e.source.tolist()), tuple(e.target.tolist()))
        for e in reader.read(np.arange(len(reader)))
    }
    assert set(counts) == distinct


@pytest.mark.parametrize("stop", [1, 5])
def test_resuming_gives_the_batches_that_would_have_come(data, stop):
    whole, _ = take(TrainBatches(data, CONFIG), stop + 4)
    _, state = take(TrainBatches(data, CONFIG), stop)
    resumed, _ = take(TrainBatches(data, CONFIG, state=state), 4)
    for (one, _), (other, _) in zip(whole[stop:], resumed, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_a_process_makes_its_own_rows_of_the_same_batches(data):
    whole, _ = take(TrainBatches(data, CONFIG), 3)
    part, _ = take(TrainBatches(data, CONFIG, rows=range(1, 3)), 3)
    for (one, _), (other, _) in zip(whole, part, strict=True):
        np.testing.assert_array_equal(one["source_ids"][1:3], other["source_ids"])


def test_dev_batches_hold_every_dev_example_once(data):
    batches = list(dev_batches(data, CONFIG, "fr", 100))
    assert all(batch["source_ids"].shape == (CONFIG.rows, 24) for batch in batches)
    found = sorted(example for batch in batches for example in unpack(batch))
    examples = dev_examples(data, CONFIG, "fr", 0)
    expected = sorted((tuple(e.source.tolist()), tuple(e.target.tolist())) for e in examples)
    assert found == expected


def test_text_survives_the_vocabularies(data):
    for name in ("source", "target"):
        vocabulary = Vocabulary.load(data.folder / f"{name}.model")
        texts = ["red apple", "Ελληνικά", "naïve 東京"]
        ids = vocabulary.encode_target(texts)
        assert all(one[-1] == EOS for one in ids)
        assert vocabulary.decode(ids) == texts


def test_preparing_again_does_nothing_and_other_text_prepares_anew(corpus, tmp_path, capsys):
    out = tmp_path / "prepared"
    prepare(CONFIG, corpus, out)
    before = (out / "manifest.json").stat().st_mtime_ns
    prepare(CONFIG, corpus, out)
    assert (out / "manifest.json").stat().st_mtime_ns == before
    assert "is up to date" in capsys.readouterr().err


def test_many_to_many_begins_each_source_with_its_target(corpus, tmp_path):
    import dataclasses

    config = dataclasses.replace(CONFIG, direction="many-to-many")
    prepare(config, corpus, tmp_path / "prepared")
    data = PreparedData.open(tmp_path / "prepared")
    assert {(p.source, p.target) for p in data.pairs} == {
        ("fr", "en"),
        ("en", "fr"),
        ("de", "en"),
        ("en", "de"),
    }
    vocabulary = Vocabulary.load(data.folder / "source.model")
    for target in ("en", "fr", "de"):
        (ids,) = vocabulary.encode_source(["red"], "en", target)
        assert ids[0] == vocabulary.tag(f"<2{target}>")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"languages": ("frr",)}, "Did you mean fr"),
        ({"minimum_pairs": 500}, "the largest are fr 120, de 40"),
        ({"source_length": 8, "target_length": 4}, None),
    ],
)
def test_what_does_not_fit_is_said(corpus, tmp_path, changes, words):
    import dataclasses

    config = dataclasses.replace(CONFIG, **changes)
    if words is None:
        prepare(config, corpus, tmp_path / "prepared")
        assert PreparedData.open(tmp_path / "prepared").pairs
        return
    with pytest.raises(UserError, match=words):
        prepare(config, corpus, tmp_path / "prepared")
    assert not (tmp_path / "prepared").exists()
