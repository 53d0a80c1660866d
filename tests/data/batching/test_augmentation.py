"""Augmentation: it changes as many examples as its rates say, and keeps the others as they are."""

import dataclasses
import itertools

import numpy as np
import pytest

from gshard_nmt.data.batching import augmentation
from gshard_nmt.data.batching.augmentation import Augmentation
from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.data.sets.examples import Examples
from gshard_nmt.data.sets.manifest import VOCABULARIES
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError
from gshard_nmt.prepare import prepare

CONFIG = Data(
    direction="many-to-many",
    source_vocabulary=400,
    target_vocabulary=400,
    source_length=20,
    target_length=20,
    rows=4,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("augmentation")
    numbers = range(60)
    rows = [(f"Datei {n} lesen", f"read file {n}") for n in numbers]
    rows += [
        (f"von %s nach {{x{n}}} und wieder %s", f"to {{x{n}}} from %s then %s") for n in numbers
    ]
    write_pairs(folder / "corpus" / "de-en", "train", "de", "en", rows)
    prepare(CONFIG, folder / "corpus", folder / "data")
    return PreparedData.open(folder / "data")


def examples_of(data: PreparedData) -> Examples:
    return Examples.of(data.reader_of_all(data.pairs_of(CONFIG), "train").read(np.arange(120)))


def changed(data: PreparedData, examples: Examples, keys, **settings):
    record = {}
    config = dataclasses.replace(CONFIG, **settings)
    after = Augmentation(data, config, record).change_all(examples, np.array(keys, np.uint64))
    return list(after.each()), record


def same(first, second) -> bool:
    return all(
        getattr(first, side).tolist() == getattr(second, side).tolist()
        for side in ("source", "target")
    )


def test_a_rate_is_the_share_of_changed_examples_and_the_others_stay(data):
    examples = examples_of(data)
    share = 0.0
    for round_ in range(10):
        keys = range(120 * round_, 120 * round_ + 120)
        after, _ = changed(data, examples, keys, augmentation={"typos": 0.25})
        share += sum(not same(*pair) for pair in zip(after, examples.each(), strict=True)) / 1200
    assert share == pytest.approx(0.25, abs=0.05)


def test_the_key_alone_decides_whatever_the_company(data):
    examples = examples_of(data)
    rates = {"typos": 0.5, "emoji": 0.3, "placeholders": 0.5}
    together, _ = changed(data, examples, range(120), augmentation=rates)
    for n in range(0, 120, 7):
        order = np.array([n])
        (alone,), _ = changed(data, examples.take(order), order, augmentation=rates)
        assert same(alone, together[n])


def test_symbols_replace_equal_values_and_have_their_numbers(data):
    vocabularies = [Vocabulary.load(data.folder / name) for name in VOCABULARIES]
    examples = examples_of(data)
    after, _ = changed(data, examples, range(120), augmentation={"placeholders": 1})
    with_values = 0
    for before, example in zip(examples.each(), after, strict=True):
        assert example.source[0] == before.source[0] == vocabularies[0].tag("<2en>")
        pieces = [
            v.pieces(ids)
            for v, ids in zip(vocabularies, (example.source, example.target), strict=True)
        ]
        assert [side[-1] for side in pieces] == ["</s>"] * 2
        digits = [[d for p, d in itertools.pairwise(side) if p == "<ph>"] for side in pieces]
        if "%" in "".join(vocabularies[0].pieces(before.source)):
            assert digits == [["<0x31>", "<0x32>", "<0x33>"], ["<0x32>", "<0x31>", "<0x33>"]]
            with_values += 1
        else:
            assert same(before, example)
    assert 20 < with_values < 100


def test_an_example_that_would_not_fit_stays(data):
    examples = examples_of(data)
    after, _ = changed(data, examples, range(120), augmentation={"values": 1})
    assert max(len(example.source) for example in after) == CONFIG.source_length
    assert sum(same(*pair) for pair in zip(after, examples.each(), strict=True)) > 5


def test_a_vocabulary_without_the_symbol_is_named(data, monkeypatch):
    monkeypatch.setattr(augmentation, "symbol", lambda _: None)
    config = dataclasses.replace(CONFIG, augmentation={"copies": 0.1})
    with pytest.raises(UserError, match=r"has \['copies'\], but the vocabularies of .* no symbol"):
        TrainBatches(data, config)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"capital": 0.1}, "has 'capital'; did you mean 'capitals'?"),
        ({"capitals": 1.5}, r"\['capitals'\] is 1.5; it must be from 0 to 1"),
        ({"capitals": float("nan")}, "is nan; it must be from 0 to 1"),
    ],
)
def test_wrong_rates_are_named(rates, message):
    with pytest.raises(UserError, match=message):
        Data(augmentation=rates)
