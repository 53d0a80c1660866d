import hashlib
import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from gshard_nmt.data.cleaning import duplicates
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.config import DUPLICATES
from gshard_nmt.data.cleaning.duplicates import hashes, of_pairs
from gshard_nmt.data.cleaning.registry import clean
from gshard_nmt.data.sets.corpus import SentencePair

LINES = ["Ein Haus", "ein haus.", "EIN  HAUS!", "Haus 1", "Haus 2", "%s"]
LINES += ["Kap. 1", "", "...", "का", "की"]
ROWS = st.lists(
    st.builds(SentencePair, st.sampled_from(LINES), st.sampled_from(LINES[:6])), max_size=40
)


def near(text):
    """Returns what counts of a text of LINES: no case, no spaces, no punctuation."""
    plain = "".join(c for c in text.casefold() if c not in " .!")
    return plain if any(c.isalpha() for c in text.replace("%s", "")) else text


KEYS = {
    "pair": lambda row: (row.source, row.target),
    "near": lambda row: (near(row.source), near(row.target)),
    "source": lambda row: row.source,
    "target": lambda row: row.target,
}


def oracle(rows, kinds):
    """Returns the first kind that finds each row, or None, with plain sets."""
    seen = {kind: set() for kind in kinds}
    result = []
    for row in rows:
        by = [kind for kind in kinds if KEYS[kind](row) in seen[kind]]
        result.append(by[0] if by else None)
        for kind in kinds:
            seen[kind].add(KEYS[kind](row))
    return result


def on_disk(rows, kinds, sizes, buckets, folder):
    """Returns the same by the files, with chunks of these sizes in turns."""
    chunks, rest = [], list(rows)
    for size in itertools.cycle(sizes):
        if not rest:
            break
        chunks.append(rest[:size])
        rest = rest[size:]
    files = []
    for number, chunk in enumerate(chunks):
        files.append(folder / f"chunk{number}")
        duplicates.write_signatures(files[-1], duplicates.signatures(chunk, kinds), buckets)
    results = []
    for bucket in range(buckets):
        results.append(folder / f"bucket{bucket}")
        duplicates.write_duplicates(results[-1], duplicates.duplicates_of_bucket(files, bucket))
    answer = []
    for number, chunk in enumerate(chunks):
        by_row = dict.fromkeys(range(len(chunk)))
        for kind, numbers in zip(kinds, duplicates.read_duplicates(results, number), strict=True):
            assert np.all(numbers[1:] > numbers[:-1])
            by_row.update(dict.fromkeys(numbers.tolist(), kind))
        answer += by_row.values()
    return answer


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    ROWS,
    st.lists(st.sampled_from(DUPLICATES), unique=True, min_size=1),
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.sampled_from([1, 2, 8]),
)
def test_any_split_finds_what_plain_sets_find(tmp_path_factory, rows, kinds, sizes, buckets):
    folder = tmp_path_factory.mktemp("duplicates")
    assert on_disk(rows, kinds, sizes, buckets, folder) == oracle(rows, kinds)


@pytest.mark.parametrize(
    ("first", "second", "is_near"),
    [
        ("Das Haus.", "das haus", True),
        ("Kapitel 1", "Kapitel 2", False),
        ("%s kopieren", "%d kopieren", False),
        ("का", "की", False),
        ("...", "!!!", False),
    ],
)
def test_near_duplicates(first, second, is_near):
    values = duplicates.signatures([SentencePair(first, "x"), SentencePair(second, "x")], ["near"])
    assert (values[0, 0] == values[1, 0]) == is_near


def test_the_rows_of_cleaning_have_the_signatures_of_a_list():
    rows = [SentencePair(line, other) for line in LINES for other in ("a", "b 1", "b%s")]
    cleaned = clean(rows, About("de", "en"))
    values = duplicates.signatures(cleaned.rows, DUPLICATES)
    np.testing.assert_array_equal(values, duplicates.signatures(list(cleaned.rows), DUPLICATES))
    assert values.shape == (len(cleaned.rows), 4)
    assert values.dtype == np.uint64


def test_the_number_of_buckets_grows_with_the_rows():
    numbers = (0, 1, 2**20, 2**20 + 1, 10**9)
    assert list(map(duplicates.buckets_for, numbers)) == [1, 1, 1, 2, 1024]


def test_no_rows_and_no_kinds():
    assert duplicates.signatures([], ["pair"]).shape == (0, 1)
    assert duplicates.signatures([SentencePair("a", "b")], []).shape == (1, 0)


def test_an_empty_chunk_has_no_duplicates(tmp_path):
    rows = [SentencePair("a", "b")]
    for number, part in enumerate((rows, [], rows)):
        duplicates.write_signatures(
            tmp_path / str(number), duplicates.signatures(part, ["pair"]), 2
        )
    paths = [tmp_path / str(number) for number in range(3)]
    for bucket in range(2):
        result = duplicates.duplicates_of_bucket(paths, bucket)
        duplicates.write_duplicates(tmp_path / f"bucket{bucket}", result)
    buckets = [tmp_path / f"bucket{bucket}" for bucket in range(2)]
    numbers = [duplicates.read_duplicates(buckets, chunk)[0].tolist() for chunk in range(3)]
    assert numbers == [[], [], [0]]


STEP, ALL = 0x9E3779B97F4A7C15, (1 << 64) - 1


def mixed(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & ALL
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & ALL
    return value ^ (value >> 31)


def hash_oracle(text, prefix):
    """Returns the hash of a text, computed with Python's integers."""
    seed = int.from_bytes(hashlib.blake2b(prefix.encode(), digest_size=8).digest(), "little")
    content = text.encode("utf-8", "surrogatepass")
    total = len(content) * STEP + seed
    for place in range(len(content) // 8 + 1):
        word = int.from_bytes(content[8 * place : 8 * place + 8], "little")
        total += mixed((word + place * STEP + seed) & ALL)
    return mixed(total & ALL)


@hypothesis.settings(deadline=None)
@hypothesis.given(st.lists(st.text(st.characters(), max_size=30)), st.text(max_size=3))
def test_the_hashes_are_the_same_on_every_machine_and_in_every_version(texts, prefix):
    assert hashes(texts, prefix).tolist() == [hash_oracle(text, prefix) for text in texts]


def test_equal_texts_have_equal_hashes_and_prefixes_matter():
    first = hashes(["a", "b", "a", "\ud800"], "x").tolist()
    assert first[0] == first[2] != first[1]
    assert set(first).isdisjoint(hashes(["a", "b", "\ud800"], "y").tolist())
    assert len(hashes([])) == 0


def test_the_order_of_a_pair_matters():
    first, second = hashes(["a", "b"]), hashes(["b", "a"])
    pairs = of_pairs(first, second).tolist()
    assert pairs[0] != pairs[1]
    assert pairs == of_pairs(first.copy(), second.copy()).tolist()
