"""Many examples in flat arrays are the same examples one at a time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gshard_nmt.data.sets.examples import Example, Examples, gather

sentences = st.lists(st.integers(4, 99), min_size=1, max_size=6).map(np.array)
example_lists = st.lists(st.builds(Example, sentences, sentences, st.integers(0, 9)), max_size=8)


def unpacked(examples: Examples) -> list[tuple[list[int], list[int], int]]:
    sources = np.split(examples.source, np.cumsum(examples.source_lengths))
    targets = np.split(examples.target, np.cumsum(examples.target_lengths))
    pairs = zip(sources[:-1], targets[:-1], examples.languages, strict=True)
    return [(s.tolist(), t.tolist(), int(language)) for s, t, language in pairs]


@settings(deadline=None, max_examples=40)
@given(listed=example_lists, order=st.randoms(), data=st.data())
def test_reordering_cutting_and_joining(listed, order, data):
    expected = [(e.source.tolist(), e.target.tolist(), e.language) for e in listed]
    examples = Examples.of(listed)
    assert unpacked(examples) == expected
    assert len(examples) == len(listed)
    numbers = list(range(len(listed))) * 2
    order.shuffle(numbers)
    taken = examples.take(np.array(numbers, np.int64))
    assert unpacked(taken) == [expected[number] for number in numbers]
    begin = data.draw(st.integers(0, len(listed)))
    end = data.draw(st.integers(begin, len(listed)))
    assert unpacked(examples.part(begin, end)) == expected[begin:end]
    parts = [examples.part(0, begin), examples.part(begin, len(listed))]
    assert unpacked(Examples.joined(parts)) == expected


def test_gather_joins_pieces():
    pieces = gather(np.arange(10) * 11, np.array([7, 2, 0]), np.array([2, 3, 0]))
    assert pieces.tolist() == [77, 88, 22, 33, 44]
