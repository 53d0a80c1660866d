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
    hashed,
    quotas,
    sample,
    smallest,
    text_seed,
)

LINES = st.lists(st.text("ab ", max_size=5), max_size=60)


SOURCES = [f"source {i % 700} é" for i in range(1500)]
TARGETS = [f"target {i}" for i in range(1500)]


def chosen(lines, limit, seed):
    return smallest(hashed(lines, seed), limit)


@settings(deadline=None, max_examples=80)
@given(LINES, st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_split_into_blocks_and_any_order_give_the_same_sample(lines, limit, order):
    whole = chosen(lines, limit, "3")
    shuffled = order.sample(lines, len(lines))
    cut = order.randrange(len(lines) + 1)
    first, second = (chosen(block, limit, "3") for block in (shuffled[:cut], shuffled[cut:]))
    assert list(smallest(first | second, limit)) == list(whole)
    distinct = {line for line in lines if line.strip()}
    assert set(whole) <= distinct
    assert len(whole) == min(limit, len(distinct))
    # A smaller sample is the beginning of a larger one.
    assert list(smallest(whole, limit // 2)) == list(whole)[: limit // 2]


def test_every_line_has_the_same_chance_wherever_it_stands_and_however_often():
    lines = [str(n) for n in range(50)] + ["0"] * 500
    counts = collections.Counter(line for s in range(400) for line in chosen(lines, 10, str(s)))
    # Each line is in a sample with probability 1/5: 80 times, with a standard deviation of 8.
    assert len(counts) == 50
    assert all(48 <= count <= 112 for count in counts.values()), counts


def test_equal_english_lines_of_two_languages_give_two_samples():
    lines = [str(random.Random(n).random()) for n in range(2000)]
    first, second = (chosen(lines, 100, text_seed(1, "target", x, "en")) for x in ("fr", "de"))
    # 5 of the 100 lines are expected in both.
    assert len({*first} & {*second}) < 20


def test_the_temperature_decides_the_share_of_a_text():
    sizes = [1000, 100, 0]
    assert quotas(sizes, 1101, 1) == [1000, 100, 1]
    assert all(99 <= count <= 100 for count in quotas(sizes, 300, 1e9))
    assert quotas([], 10, 1) == []
    # The rates are 0.6131 and 0.3869 at temperature 5, 0.5058 and 0.4942 at temperature 100.
    assert quotas([1000, 100], 1000, 5) == [613, 386]
    assert quotas([1000, 100], 1000, 100) == [505, 494]
    assert sum(quotas(range(1, 50), 1000, 5)) <= 1000


def sampled(folder, sizes, limit):
    """Returns the sample of units with these numbers of rows."""
    first, folders = 0, []
    seeds = [text_seed(1, side, "fr", "en") for side in ("source", "target")]
    for number, size in enumerate(sizes):
        file = folder / f"{number}.zst"
        rows = slice(first, first + size)
        chunks.write(file, chunks.content_of(Chunk(SOURCES[rows], TARGETS[rows])))
        folders.append(folder / f"unit {number}")
        folders[-1].mkdir(parents=True)
        sample(folders[-1], [Part(file, size)], False, seeds, limit, 1500)
        first += size
    return Sample(limit, folders)


@pytest.mark.parametrize("limit", [20, 5000])
def test_any_split_gives_the_same_lines(tmp_path, limit):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, more = (
        sampled(tmp_path / name, sizes, limit)
        for name, sizes in (("a", [1500]), ("b", [700, 1, 799]))
    )
    for side, lines in (("source", SOURCES), ("target", TARGETS)):
        expected = list(chosen(lines, limit, text_seed(1, side, "fr", "en")))
        assert one.lines(side) == more.lines(side) == expected
