"""Makes the text of a race: this package cleans and tokenizes it, and all racers get the result."""

import hashlib
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from racers import ours
from racers.plan import Text

from gshard_nmt import files
from gshard_nmt.data.sets.corpus import ENGLISH, find_pairs, read_pairs
from gshard_nmt.data.sets.examples import SIDES
from gshard_nmt.data.sets.shards import PreparedData
from gshard_nmt.data.text.vocabulary import Vocabulary
from gshard_nmt.errors import UserError


def make_text(corpus: Path, source: str, sentences: int, folder: Path) -> Text:
    dev, test = (held_out_rows(corpus, source, split)[:sentences] for split in ("dev", "test"))
    prepared = folder / "prepared"
    # The program knows whether its output is up to date.
    command = [sys.executable, "-m", "gshard_nmt", "data", "prepare", "--config", "baseline"]
    settings = [f"--gin={name} = {value!r}" for name, value in ours.data_settings(source).items()]
    done = subprocess.run(
        [*command, *settings, "--corpus", corpus, "--out", prepared],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"gshard-data prepare failed:\n{done.stderr.strip()}")
    data = PreparedData.open(prepared)
    vocabulary = prepared / "source.model"
    train = train_rows(data, Vocabulary.load(vocabulary))
    splits = {"train": train, "dev": dev, "test": test}
    text = Text(folder, source, prepared, vocabulary, _fingerprint(splits, vocabulary))
    for split, rows in splits.items():
        for column, language in enumerate((source, ENGLISH)):
            content = "".join(f"{row[column]}\n" for row in rows)
            files.write(text.file(split, language), content)
    return text


def held_out_rows(corpus: Path, source: str, split: str) -> list[tuple[str, str]]:
    pairs = [pair for pair in find_pairs(corpus) if pair.languages == {source, ENGLISH}]
    if not pairs:
        raise UserError(
            f"--corpus {corpus} has no folder {source}-{ENGLISH}. Name a language that it has with "
            "--language."
        )
    rows = [row for pair in pairs for row in read_pairs(pair, split, source, ENGLISH)]
    rows = [row for row in rows if row[0].strip() and row[1].strip()]
    if not rows:
        raise UserError(
            f"{pairs[0].folder} has no {split} text. Put at least 100 sentence pairs into "
            f"{split}.{source} and {split}.{ENGLISH}."
        )
    return rows


def train_rows(data: PreparedData, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    sides: dict[str, list[str]] = {side: [] for side in SIDES}
    for pair in data.pairs:
        count = pair.splits["train"].examples
        examples = data.reader(pair, "train").read(np.arange(count))
        for side in SIDES:
            ids = [getattr(example, side).tolist() for example in examples]
            sides[side] += vocabulary.decode(ids)
    return [row for row in zip(*sides.values(), strict=True) if row[0].strip() and row[1].strip()]


def _fingerprint(splits: Mapping[str, Sequence[tuple[str, str]]], vocabulary: Path) -> str:
    digest = hashlib.sha256(vocabulary.read_bytes())
    for rows in splits.values():
        digest.update(repr(rows).encode())
    return digest.hexdigest()[:16]
