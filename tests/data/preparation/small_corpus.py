"""A small corpus, the settings that prepare it, and a work folder that says nothing."""

import contextlib
import pathlib
from collections.abc import Iterator

from rich.console import Console

from gshard_nmt.data.cleaning.config import Cleaning
from gshard_nmt.data.config import Data
from gshard_nmt.data.preparation.work import WorkFolder
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.data.worker_pool import WorkerPool

CONFIG = Data(
    source_vocabulary=330,
    target_vocabulary=330,
    source_length=64,
    target_length=64,
    rows=4,
    packing_window=3,
)
QUIET = Console(quiet=True)
CLEANING = Cleaning(filters=("empty", "overlap"))


def sentences(language: str, split: str, count: int) -> list[tuple[str, str]]:
    """Returns pairs of which no two are equal."""
    return [
        (
            f"{language} {split} " + "abcdefghij"[i % 10] * (i // 10 + 1),
            f"text {split} {i} of {language}",
        )
        for i in range(count)
    ]


def write_corpus(root: pathlib.Path, languages=("fr", "de"), train=60) -> pathlib.Path:
    for language in languages:
        for split, count in (("train", train), ("dev", 6), ("test", 5)):
            rows = sentences(language, split, count)
            write_pairs(root / f"{language}-en", split, language, "en", rows)
    return root


@contextlib.contextmanager
def work_folder(path: pathlib.Path, workers=1, console=QUIET) -> Iterator[WorkFolder]:
    with WorkerPool(workers) as pool, WorkFolder(path, pool, console) as work:
        yield work


def content(folder: pathlib.Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}
