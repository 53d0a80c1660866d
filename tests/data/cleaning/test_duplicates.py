import hashlib
import itertools

import hypothesis
import numpy as np
from hypothesis import strategies as st

from gshard_nmt.data.cleaning import duplicates
from gshard_nmt.data.cleaning.block import About
from gshard_nmt.data.cleaning.config import DUPLICATES
from gshard_nmt.data.cleaning.duplicates import hashes
from gshard_nmt.data.cleaning.filters import clean
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
    for size in itertools.cycle([*sizes, 1]):
        chunks.append(rest[:size])
        rest = rest[size:]
        if not rest:
            break
    files = [folder / f"chunk{number}" for number in range(len(chunks))]
    for file, chunk in zip(files, chunks, strict=True):
        duplicates.write_signatures(file, duplicates.signatures(chunk, kinds))
    results = [folder / f"bucket{bucket}" for bucket in range(buckets)]
    found_in = []
    for bucket, result in enumerate(results):
        found = duplicates.duplicates_of_bucket(files, bucket, buckets)
        found_in += map(tuple, found.T.tolist())
        duplicates.save(result, found)
    assert len(set(found_in)) == len(found_in)  # a bucket reads no signatures of another one
    answer = []
    for number, chunk in enumerate(chunks):
        by_row = dict.fromkeys(range(len(chunk)))
        found = duplicates.read_duplicates(results, number, len(kinds))
        for kind, numbers in zip(kinds, found, strict=True):
            assert np.all(numbers[1:] > numbers[:-1])
            by_row.update(dict.fromkeys(numbers.tolist(), kind))
        answer += by_row.values()
    return answer


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    ROWS,
    st.lists(st.sampled_from(DUPLICATES), unique=True, min_size=1),
    st.lists(st.integers(0, 12), max_size=3),
    st.sampled_from([1, 2, 8]),
)
def test_any_split_finds_what_plain_sets_find(tmp_path_factory, rows, kinds, sizes, buckets):
    folder = tmp_path_factory.mktemp("duplicates")
    assert on_disk(rows, kinds, sizes, buckets, folder) == oracle(rows, kinds)


def test_the_rows_of_cleaning_have_the_signatures_of_a_list():
    rows = [SentencePair(line, other) for line in LINES for other in ("a", "b 1", "b%s")]
    cleaned = clean(rows, About("de", "en"))
    values = duplicates.signatures(cleaned.rows, DUPLICATES)
    np.testing.assert_array_equal(values, duplicates.signatures(list(cleaned.rows), DUPLICATES))
    assert values.shape == (len(cleaned.rows), 4)
    assert values.dtype == np.uint64


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
