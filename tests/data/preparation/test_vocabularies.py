"""The sample of lines: its size, its evenness, and that blocks and their order make no difference."""

import collections
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.chunks import Chunk, Part
from gshard_nmt.data.preparation.vocabularies import (
    Sample,
    Sampler,
    Sampling,
    merge,
    quotas,
    sample,
    text_seed,
)

LINES = st.lists(st.text("ab ", max_size=5), max_size=60)


SOURCES = [f"source {i % 700} é" for i in range(1500)]
TARGETS = [f"target {i}" for i in range(1500)]


def smallest(lines, limit, seed):
    sampler = Sampler(limit, seed)
    sampler.add(lines)
    return sampler.candidates()


@settings(deadline=None, max_examples=80)
@given(LINES, st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_split_into_blocks_and_any_order_give_the_same_sample(lines, limit, order):
    whole = smallest(lines, limit, 3)
    shuffled = order.sample(lines, len(lines))
    cuts = sorted(order.randrange(len(lines) + 1) for _ in range(3))
    blocks = [
        shuffled[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(lines)], strict=True)
    ]
    parts = [smallest(block, limit, 3) for block in blocks]
    assert list(merge(parts, limit)) == list(whole)
    assert merge([merge(parts[:2], limit), merge(parts[2:], limit)], limit) == whole
    sampler = Sampler(limit, 3)
    for block in blocks:
        sampler.add(block)
    assert sampler.candidates() == whole
    distinct = {line for line in lines if line.strip()}
    assert set(whole) <= distinct
    assert len(whole) == min(limit, len(distinct))
    # A smaller sample is the beginning of a larger one.
    assert list(merge([whole], max(limit // 2, 1))) == list(whole)[: max(limit // 2, 1)]


def test_every_line_has_the_same_chance_wherever_it_stands_and_however_often():
    lines = [str(n) for n in range(50)] + ["0"] * 500
    counts = collections.Counter(line for seed in range(400) for line in smallest(lines, 10, seed))
    # Each line is in a sample with probability 1/5: 80 times, with a standard deviation of 8.
    assert len(counts) == 50
    assert all(48 <= count <= 112 for count in counts.values()), counts


def test_equal_english_lines_of_two_languages_give_two_samples():
    lines = [str(random.Random(n).random()) for n in range(2000)]
    first, second = (smallest(lines, 100, text_seed(1, "target", x, "en")) for x in ("fr", "de"))
    # 5 of the 100 lines are expected in both.
    assert len({*first} & {*second}) < 20


def test_the_temperature_decides_the_share_of_a_text():
    sizes = {"fr": 1000, "de": 100, "it": 0}
    assert quotas(sizes, 1101, 1) == {"fr": 1000, "de": 100, "it": 1}
    equal = quotas(sizes, 300, 1e9)
    assert all(99 <= count <= 100 for count in equal.values())
    assert quotas({}, 10, 1) == {}
    assert sum(quotas({str(n): n for n in range(1, 50)}, 1000, 5).values()) <= 1000


def sampled(folder, sizes, limit, is_reversed=False):
    """Returns the sample of units with these numbers of rows."""
    first, folders = 0, []
    for number, size in enumerate(sizes):
        file = folder / f"{number}.zst"
        rows = slice(first, first + size)
        chunks.write(file, chunks.content_of(Chunk(SOURCES[rows], TARGETS[rows])))
        folders.append(folder / f"unit {number}")
        folders[-1].mkdir(parents=True)
        languages = ("en", "fr") if is_reversed else ("fr", "en")
        part = Part(file, size)
        sample(Sampling((part,), is_reversed, *languages, limit, 1500, 1), folders[-1])
        first += size
    return Sample(*languages, limit, tuple(folders))


@pytest.mark.parametrize("limit", [20, 5000])
def test_any_split_gives_the_same_lines(tmp_path, limit):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, more = (
        sampled(tmp_path / name, sizes, limit)
        for name, sizes in (("a", [1500]), ("b", [700, 1, 799]))
    )
    for side, lines in (("source", SOURCES), ("target", TARGETS)):
        expected = tuple(smallest(lines, limit, text_seed(1, side, "fr", "en")))
        assert one.lines(side) == more.lines(side) == expected
