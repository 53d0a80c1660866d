"""Subword sampling: the text stays, the splits have the right distribution, and a key decides them."""

import collections
import concurrent.futures
import dataclasses
import math
import random

import numpy as np
import pytest
import sentencepiece

from gshard_nmt.data.batching.batches import TrainBatches
from gshard_nmt.data.batching.subword_sampling import BpeDropout, SubwordSampling, UnigramSampling
from gshard_nmt.data.config import AUGMENTATIONS, Data
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.data.sets.examples import Example
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import EOS, Vocabulary, VocabularySpec, train_vocabulary
from gshard_nmt.prepare import prepare

SYLLABLES = ["lo", "wer", "new", "est", "wi", "de", "slo", "fl", "ow", "er", "東京"]
CONFIG = Data(source_length=24, target_length=24, rows=4, packing_window=3, seed=5)
DRAWS = 1500
STRENGTH = {"bpe": 0.3, "unigram": 0.1}


def texts() -> list[str]:
    rng = np.random.default_rng(0)

    def word() -> str:
        return "".join(rng.choice(SYLLABLES, rng.integers(1, 4)))

    return [" ".join(word() for _ in range(rng.integers(1, 5))) for _ in range(150)]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def vocabulary(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "source.model"
    spec = VocabularySpec(340, request.param, tags=("<2fr>",), normalization="identity")
    return train_vocabulary(texts(), spec, path)


def sampling(vocabulary: Vocabulary, config: Data = CONFIG) -> SubwordSampling:
    config = dataclasses.replace(config, subword_sampling=STRENGTH.get(vocabulary.algorithm, 0))
    return SubwordSampling([vocabulary, vocabulary], config)


def example(vocabulary: Vocabulary, text: str) -> Example:
    (ids,) = vocabulary.encode_source([text], "en", "fr")
    return Example(np.array(ids, "<u2"), np.array(ids, "<u2"), 7)


def test_the_text_and_the_special_ids_stay_and_the_pieces_vary(vocabulary):
    sampler = sampling(vocabulary)
    # The emoji is spelled as bytes, in the middle of the text.
    before = example(vocabulary, "lower flower 🙂newest 東京")
    splits = set()
    for key in range(80):
        after = sampler.resample(before, key)
        assert after.language == 7
        for ids in (after.source, after.target):
            assert ids.dtype == before.source.dtype
            assert vocabulary.decode([ids]) == ["lower flower 🙂newest 東京"]
            assert ids[0] == vocabulary.tag("<2fr>")
            assert ids.tolist().count(EOS) == 1
            assert ids[-1] == EOS
            fallback = vocabulary.is_byte_fallback
            assert ids[fallback[ids]].tolist() == before.source[fallback[before.source]].tolist()
        splits.add(tuple(after.source))
    assert len(splits) > 20


def test_a_key_decides_the_split_whatever_came_before(vocabulary):
    before = example(vocabulary, "slowest flower widest")
    first, second = sampling(vocabulary), sampling(vocabulary)
    forward = {key: first.resample(before, key).source.tolist() for key in range(40)}
    backward = {key: second.resample(before, key).source.tolist() for key in reversed(range(40))}
    assert forward == backward
    assert len({tuple(ids) for ids in forward.values()}) > 5
    other = sampling(vocabulary, dataclasses.replace(CONFIG, seed=6))
    assert forward != {key: other.resample(before, key).source.tolist() for key in range(40)}
    # The two sides are independent.
    after = [first.resample(before, key) for key in range(40)]
    assert any(a.source.tolist() != a.target.tolist() for a in after)


def test_the_distribution_is_that_of_sentencepiece(vocabulary):
    """Both sample the same word; the difference of the frequencies is as small as chance allows."""
    sampler = sampling(vocabulary)
    before = example(vocabulary, "slowest flower")
    ours = collections.Counter(
        tuple(sampler.resample(before, key).source[1:-1].tolist()) for key in range(DRAWS)
    )
    # SentencePiece seeds the generator of a thread when the thread begins to sample.
    sentencepiece.set_random_generator_seed(1)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        theirs = thread.submit(
            lambda: collections.Counter(
                tuple(
                    vocabulary._processor.encode(
                        "slowest flower",
                        enable_sampling=True,
                        alpha=STRENGTH[vocabulary.algorithm],
                        nbest_size=-1,
                    )
                )
                for _ in range(DRAWS)
            )
        ).result()
    assert len(ours) > 10
    splits = [split for split in ours | theirs if ours[split] + theirs[split] >= 20]
    # The statistic of the chi-squared test for two samples of the same size.
    statistic = sum((ours[s] - theirs[s]) ** 2 / (ours[s] + theirs[s]) for s in splits)
    freedom = len(splits) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom), (statistic, freedom)


def test_without_dropout_and_with_a_sharp_distribution_the_best_split_stays(vocabulary):
    (ids,) = vocabulary.encode(["slowest flower wide 東京"])
    numbers = random.Random(0).random
    is_bpe = vocabulary.algorithm == "bpe"
    splitter = BpeDropout(vocabulary, 1e-12) if is_bpe else UnigramSampling(vocabulary, 50)
    assert all(splitter.resample(ids, numbers) == ids for _ in range(20))


def test_a_sampled_split_that_does_not_fit_is_not_used(vocabulary):
    before = example(vocabulary, "lower flower")
    config = dataclasses.replace(CONFIG, source_length=len(before.source) + 1)
    sampler = sampling(vocabulary, config)
    after = [sampler.resample(before, key) for key in range(100)]
    assert max(len(a.source) for a in after) == config.source_length
    assert max(len(a.target) for a in after) > config.source_length
    assert {len(a.source) for a in after} >= {len(before.source)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    rows = [(text, text[::-1]) for text in texts()]
    write_pairs(folder / "corpus" / "fr-en", "train", "fr", "en", rows)
    config = dataclasses.replace(CONFIG, source_vocabulary=340, target_vocabulary=340)
    prepare(config, folder / "corpus", folder / "data")
    return config, PreparedData.open(folder / "data")


def batches_of(data, config, count, **settings):
    batches = TrainBatches(data, config, **settings)
    try:
        return [next(batches) for _ in range(count)], batches.position()
    finally:
        batches.close()


ALL_VARIATIONS = dict.fromkeys(AUGMENTATIONS, 0.4)


@pytest.mark.parametrize(
    "settings",
    [
        {"subword_sampling": 0.3},
        {"augmentation": ALL_VARIATIONS},
        {"augmentation": ALL_VARIATIONS, "subword_sampling": 0.3, "subword_sampling_target": True},
    ],
)
def test_changed_batches_resume_bit_for_bit_and_rows_may_move(prepared, settings):
    config, data = prepared
    sampled = dataclasses.replace(config, **settings)
    whole, _ = batches_of(data, sampled, 9)
    _, position = batches_of(data, sampled, 4)
    resumed, _ = batches_of(data, sampled, 5, position=position)
    some, _ = batches_of(data, sampled, 5, rows=[1, 3], position=position, apart=True)
    for first, second, part in zip(whole[4:], resumed, some, strict=True):
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name])
            np.testing.assert_array_equal(array[[1, 3]], part[name])


def test_only_the_sides_that_are_asked_for_are_sampled(prepared):
    config, data = prepared

    def examples(**changes):
        batches = TrainBatches(data, dataclasses.replace(config, **changes))
        try:
            none = np.zeros((1, 1), np.int64)
            (chunk,) = batches._draws.read([0], [0], none, [none[0].copy()])
            return list(chunk.each())
        finally:
            batches.close()

    def differ(first, second, side):
        return sum(
            getattr(a, side).tolist() != getattr(b, side).tolist()
            for a, b in zip(first, second, strict=True)
        )

    plain, source = examples(), examples(subword_sampling=0.3)
    both = examples(subword_sampling=0.3, subword_sampling_target=True)
    assert differ(plain, source, "source") > len(plain) // 3
    assert differ(plain, source, "target") == 0
    assert differ(plain, both, "target") > len(plain) // 3
    assert differ(source, both, "source") == 0
    target = Vocabulary.load(data.folder / "target.model")
    assert target.decode([e.target for e in both]) == target.decode([e.target for e in plain])
