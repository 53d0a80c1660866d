"""What can go wrong with a corpus or a machine while a corpus is prepared."""

import contextlib
import dataclasses
import gzip
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from gshard_nmt import files
from gshard_nmt.cli.flags import Command
from gshard_nmt.cli.runner import run
from gshard_nmt.data.sets.corpus import read_blocks, write_pairs
from gshard_nmt.data.sets.records import ShardWriter
from gshard_nmt.errors import UserError
from gshard_nmt.outputs import partial_path
from gshard_nmt.prepare import prepare
from tests.data.preparation.small_corpus import CONFIG, content, sentences, write_corpus
from tests.data.preparation.test_job import ALONE
from tests.faults import full_disk


@pytest.mark.slow
def test_killed_at_any_place_no_data_is_lost_and_the_same_bytes_are_made(tmp_path):
    words = [sys.executable, "-m", "tests.data.preparation.killed_preparation", tmp_path, "8"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100  # the number of places, of which each eighth is tried


def test_nothing_is_written_into_the_corpus(tmp_path):
    corpus = write_corpus(tmp_path / "corpus", ["fr"])

    def state():
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in [corpus, *corpus.rglob("*")]}

    before = state()
    prepare(CONFIG, corpus, tmp_path / "out", ALONE)
    assert state() == before


def test_a_corpus_that_changed_after_an_interruption_is_read_again(tmp_path, monkeypatch):
    corpus, out = write_corpus(tmp_path / "corpus"), tmp_path / "out"

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gshard_nmt.data.preparation.job.tokenize_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare(CONFIG, corpus, out, ALONE)
    write_pairs(corpus / "fr-en", "train", "fr", "en", sentences("fr", "new", 50))
    prepare(CONFIG, corpus, out, ALONE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    prepare(CONFIG, corpus, tmp_path / "at_once", ALONE)
    assert content(out) == content(tmp_path / "at_once")


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path, monkeypatch):
    corpus, out = write_corpus(tmp_path / "corpus", ["fr"]), tmp_path / "out"
    file = corpus / "fr-en" / "train.en.gz"

    def read_and_change(item):
        yield from read_blocks(item)
        if file in item.files:
            file.write_bytes(file.read_bytes() + gzip.compress(b"one more line\n"))

    with monkeypatch.context() as patch:
        patch.setattr("gshard_nmt.data.preparation.inputs.read_blocks", read_and_change)
        with pytest.raises(UserError, match=rf"^{file} has changed while it was read\. Wait until"):
            prepare(CONFIG, corpus, out, ALONE)
    assert not list((partial_path(out) / "read").glob("fr-en_train*"))
    with pytest.raises(UserError, match=r"fr\.gz has 60 lines, .*en\.gz has 61\."):
        prepare(CONFIG, corpus, out, ALONE)


def test_bad_text_is_named_and_the_rest_is_kept(tmp_path):
    corpus, out = write_corpus(tmp_path / "corpus", ["de"]), tmp_path / "out"
    (corpus / "fr-en").mkdir()
    (corpus / "fr-en" / "train.fr").write_text("un\ndeux\ntrois\n")
    (corpus / "fr-en" / "train.en").write_text("one\ntwo\n")
    with pytest.raises(UserError, match=r"train\.fr has 3 lines, .*train\.en has 2\.") as error:
        prepare(CONFIG, corpus, out, ALONE)
    assert "\n" not in str(error.value)
    assert not out.exists()
    assert list((partial_path(out) / "read").glob("de-en*"))
    shutil.rmtree(corpus / "fr-en")
    prepare(CONFIG, corpus, out, ALONE)


WRITERS = {
    pathlib.Path: ("write_bytes", "write_text"),
    files: ("write",),
    ShardWriter: ("close",),
    shutil: ("copyfile",),
}
"""The functions that write the files of a preparation, by the module or class that has them."""

WRITTEN = {
    *("00000.zst", "held_out.npy", "rows.zst", "signatures", "duplicates"),
    *("samples.json", "result.json", "source.json", "target.json", "source.model", "target.model"),
    *("shard-00000.ids", "models/source.model", "models/target.model"),
    *("data/source.model", "data/target.model", "data/fr-en/train-00000.ids"),
    *("data/fr-en/dev-00000.ids", "data/manifest.json", "data/cleaning.json"),
}
"""Every kind of file in the work folder. A unit's own folder has no name before it is complete."""


def on_each_write(patch, partial, act):
    """Calls `act(kind, path, write)` in the place of each write of a file in `partial`."""

    def instead_of(owner, name):
        usual = getattr(owner, name)

        def watched(*arguments, **named):
            path = arguments[1] if owner is shutil else arguments[0]
            if owner is ShardWriter:
                path = path.path
            if partial not in path.parents:
                return usual(*arguments, **named)
            inside = path.relative_to(partial)
            kind = str(inside) if inside.parts[0] == "data" else path.name
            kind = f"models/{kind}" if inside.parts[0] == "models" else kind
            return act(kind, path, lambda: usual(*arguments, **named))

        patch.setattr(owner, name, watched)

    for owner, names in WRITERS.items():
        for name in names:
            instead_of(owner, name)
    # On a disk without hard links, the shards are copied.
    patch.setattr(os, "link", lambda *_: os.stat("/no such file"))


def test_a_full_disk_at_each_kind_of_write(tmp_path, monkeypatch, capsys):
    """The disk is full at one kind of file after the other, and each command goes on from the last."""
    corpus, out, whole = write_corpus(tmp_path / "corpus", ["fr"]), tmp_path / "out", tmp_path / "w"
    rows = sentences("fr", "train", 60)
    write_pairs(corpus / "fr-en", "train", "fr", "en", [*rows, ("", "empty"), rows[0]])
    prepare(dataclasses.replace(CONFIG, source_vocabulary=340), corpus, out, ALONE)
    old, partial, sizes = content(out), partial_path(out), {}
    shutil.copytree(out, whole)

    def measure(kind, path, write):
        result = write()
        sizes.setdefault(kind, path.stat().st_size)
        return result

    with monkeypatch.context() as patch:
        on_each_write(patch, partial_path(whole), measure)
        prepare(CONFIG, corpus, whole, ALONE)
    assert set(sizes) == WRITTEN
    finished: set[pathlib.Path] = set()
    for full, size in sizes.items():

        def fill(kind, path, write, full=full, size=size):
            # There is no room for the last byte.
            with full_disk(size - 1) if kind == full else contextlib.nullcontext():
                return write()

        with monkeypatch.context() as patch:
            on_each_write(patch, partial, fill)
            command = Command(
                *("gshard-data prepare", "", "", (), lambda flags: None),
                lambda _: prepare(CONFIG, corpus, out, ALONE),
            )
            assert run(command, []) == 2, full
        message = capsys.readouterr().err.splitlines()[-1]
        assert message.startswith(f"gshard-data prepare: {partial}"), message
        assert ": File too large. Raise the limit of file sizes" in message, message
        assert content(out) == old, full
        before, finished = finished, set(partial.glob("*/*/result.json"))
        assert before <= finished, full
        assert not list(partial.glob("unfinished/*/*")), full
    assert len({path.parents[1].name for path in finished}) == 8
    written = {path.name for path in partial.rglob("*") if path.is_file() and path.stat().st_size}
    assert written <= {pathlib.Path(kind).name for kind in WRITTEN}
    prepare(CONFIG, corpus, out, ALONE)
    assert content(out) == content(whole)
    assert not partial.exists()


def test_a_full_disk_in_a_worker_process(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gshard_nmt.data.preparation.work._SMALL", 0)
    corpus, out = write_corpus(tmp_path / "corpus", ["fr"]), tmp_path / "out"
    with full_disk(), pytest.raises(OSError, match="File too large") as error:
        prepare(CONFIG, corpus, out, dataclasses.replace(ALONE, workers=2))
    assert error.value.filename == str(partial_path(out))
    assert not partial_path(out).exists()
    prepare(CONFIG, corpus, out, ALONE)
