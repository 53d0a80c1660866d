"""Reading inputs into chunks, the cache of what was read, and fingerprints."""

import gzip
import os

import pytest

from gshard_nmt.data.preparation import chunks, inputs
from gshard_nmt.data.sets.corpus import find_pairs, write_pairs
from tests.data.preparation.small_corpus import work_folder

ROWS = [("un", "one"), ("deux", "two"), ("", "three")]


def item_of(corpus):
    ((item,),) = [pair.inputs("train") for pair in find_pairs(corpus)]
    return item


def write_old(corpus, rows=ROWS):
    """Writes a corpus as if it was there for an hour."""
    write_pairs(corpus / "fr-en", "train", "fr", "en", rows)
    for path in (corpus / "fr-en").iterdir():
        os.utime(path, ns=(1_700_000_000_000_000_001, 1_700_000_000_000_000_001))


def read(item, folder):
    folder.mkdir()
    return inputs.read(folder, item, inputs.stamps(item))


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
    write_old(tmp_path / "a")
    item = item_of(tmp_path / "a")
    assert inputs.known_text(item) is None
    before = inputs.stamps(item)
    result = read(item, tmp_path / "out")
    inputs.remember(item, inputs.Text(result["digest"], tuple(result["rows"])), before)
    monkeypatch.setattr(chunks, "split", pytest.fail)
    assert inputs.digest_of(item) == result["digest"]
    assert inputs.known_text(item).rows == (3,)
    # As `cp -p` and `rsync -t` do: the size and the time of the content are those of before.
    times = item.files[0].stat()
    os.utime(item.files[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    assert inputs.known_text(item) is None


def test_an_input_that_may_change_unseen_is_not_remembered(tmp_path):
    """A file that changed just now can change again without another time stamp."""
    write_old(tmp_path / "a")
    item = item_of(tmp_path / "a")
    text = inputs.Text("0" * 32, (3,))
    before = inputs.stamps(item)
    write_old(tmp_path / "a", ROWS[:1])
    inputs.remember(item, text, before)  # it changed while it was read
    assert inputs.known_text(item) is None
    os.utime(item.files[0])
    inputs.remember(item, text, inputs.stamps(item))  # it changed just now
    assert inputs.known_text(item) is None


def test_a_damaged_cache_is_not_used(tmp_path):
    write_old(tmp_path / "a")
    item = item_of(tmp_path / "a")
    inputs.digest_of(item)
    (entry,) = (tmp_path / "cache").rglob("texts/*")
    for damage in (b"{", b"[]", b'{"version": 1}'):
        entry.write_bytes(damage)
        assert inputs.known_text(item) is None


def test_an_input_is_read_again_if_its_files_have_another_time(tmp_path):
    write_old(tmp_path / "a")
    item = item_of(tmp_path / "a")
    folders = []
    for _ in range(2):
        for _ in range(2):
            with work_folder(tmp_path / "work") as work:
                (text,) = inputs.read_all(work, [item]).values()
            folders.append(text.folder)
        os.utime(item.files[0])
    assert folders[0] == folders[1] != folders[2] == folders[3]
