"""A program that prepares a corpus and kills itself at every change of a file.

`python -m tests.data.preparation.killed_preparation FOLDER STRIDE` replaces older prepared data. It
starts a child for every STRIDE-th of these places. After the kill, `out` must be complete, old or new, or
both must be in `out.partial`. Then another child gives the same command, and all bytes must be those of
a program that nobody killed. It prints the number of places.
"""

import dataclasses
import os
import pathlib
import shutil
import sys

from gshard_nmt.data.preparation.job import Options
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.prepare import prepare
from tests.data.killed_work import CHANGES
from tests.data.preparation.small_corpus import CLEANING, CONFIG, content, write_corpus
from tests.kills import kill_at


def child(corpus: pathlib.Path, out: pathlib.Path, place: int, config=CONFIG) -> int:
    """Prepares in another process that is killed at a place; returns its exit status."""
    if (number := os.fork()) == 0:
        os.environ["XDG_CACHE_HOME"] = str(out.parent / "cache")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.dup2(2, 1)
        kill_at(place, CHANGES)
        prepare(config, corpus, out, Options(1, cleaning=CLEANING))
        os._exit(0)
    return os.waitpid(number, 0)[1]


def check_old_data(out: pathlib.Path, old: dict[str, bytes], new: dict[str, bytes]) -> None:
    """Checks that no prepared data is lost after a kill."""
    if out.exists():
        PreparedData.open(out)
        assert content(out) in (old, new)
        return
    partial = out.with_name("out.partial")
    assert content(partial / "data.replaced") == old
    assert content(partial / "data") == new


def kill_everywhere(root: pathlib.Path, stride: int) -> int:
    corpus = write_corpus(root / "corpus", ["fr"])
    assert child(corpus, root / "old", -1, dataclasses.replace(CONFIG, source_length=48)) == 0
    assert child(corpus, root / "new", -1) == 0
    old, new = content(root / "old"), content(root / "new")
    assert old != new
    place = 1
    while True:
        folder = root / str(place)
        shutil.copytree(root / "old", folder / "out")
        out = folder / "out"
        if child(corpus, out, place) == 0:
            return place - 1
        check_old_data(out, old, new)
        assert child(corpus, out, -1) == 0, place
        assert content(out) == new, place
        shutil.rmtree(folder)
        place += stride


if __name__ == "__main__":
    print(kill_everywhere(pathlib.Path(sys.argv[1]), int(sys.argv[2])))
