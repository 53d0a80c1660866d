"""Reading inputs into chunks, the cache of what was read, and fingerprints."""

import gzip
import os

import pytest

from gshard_nmt.data.preparation import chunks, inputs
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs
from tests.data.preparation.small_corpus import work_folder

ROWS = [("un", "one"), ("deux", "two"), ("", "three")]


def write_old(corpus, rows=ROWS):
    """Writes a corpus as if it was there for an hour; returns its pairs."""
    write_pairs(corpus / "fr-en", "train", "fr", "en", rows)
    for path in (corpus / "fr-en").iterdir():
        os.utime(path, ns=(1_700_000_000_000_000_001, 1_700_000_000_000_000_001))
    return find_pairs(corpus)


def test_the_fingerprint_is_of_the_text_not_of_its_format_or_order(tmp_path):
    write_pairs(tmp_path / "a" / "fr-en", "train", "fr", "en", ROWS)
    write_pairs(tmp_path / "a" / "de-en", "dev", "de", "en", ROWS)
    (tmp_path / "b" / "fr-en").mkdir(parents=True)
    lines = "".join(f"{a}\t{b}\n" for a, b in ROWS)
    (tmp_path / "b" / "fr-en" / "train.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    write_pairs(tmp_path / "b" / "de-en", "dev", "de", "en", ROWS)
    first, second = (find_pairs(tmp_path / name) for name in "ab")
    digits = inputs.fingerprint(first)
    assert len(digits) == 16
    assert inputs.fingerprint(second[::-1]) == digits
    assert inputs.fingerprint(first[:1]) != digits
    write_pairs(tmp_path / "a" / "fr-en", "train", "fr", "en", ROWS[:2])
    assert inputs.fingerprint(find_pairs(tmp_path / "a")) != digits


def test_an_input_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    pairs = write_old(tmp_path / "a")
    file = pairs[0].texts[0].files[0]
    assert inputs.known_texts(pairs) is None
    with work_folder(tmp_path / "work") as work:
        (text,) = inputs.read_all(work, pairs).values()
    (known,) = inputs.known_texts(pairs).values()
    assert (known.digest, known.rows) == (text.digest, (3,))
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "split", pytest.fail)
        inputs.fingerprint(pairs)
    # As `cp -p` and `rsync -t` do: the size and the time of the content are those of before.
    times = file.stat()
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert inputs.known_texts(pairs) is None


def test_a_damaged_cache_is_not_used(tmp_path):
    pairs = write_old(tmp_path / "a")
    inputs.fingerprint(pairs)
    (entry,) = (tmp_path / "cache").rglob("texts/*")
    for damage in (b"{", b"[]", b'["a", 1]'):
        entry.write_bytes(damage)
        assert inputs.known_texts(pairs) is None


def test_an_input_is_read_again_if_its_files_have_another_time(tmp_path):
    pairs = write_old(tmp_path / "a")
    folders = []
    for _ in range(2):
        for _ in range(2):
            with work_folder(tmp_path / "work") as work:
                (text,) = inputs.read_all(work, pairs).values()
            folders.append(text.folder)
        os.utime(pairs[0].texts[0].files[0])
    assert folders[0] == folders[1] != folders[2] == folders[3]
