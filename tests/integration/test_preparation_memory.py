"""Ten times the text needs the same memory."""

import gzip
import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, pathlib, resource, sys
from gshard_nmt.data.preparation import chunks
from gshard_nmt.data.preparation.job import Options
from gshard_nmt.prepare import prepare
from tests.data.preparation.small_corpus import CONFIG
import dataclasses
chunks.CHUNK_ROWS = 1 << 13
config = dataclasses.replace(CONFIG, source_vocabulary=2000, target_vocabulary=2000,
                             vocabulary_sentences=20000)
prepare(config, pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), Options(1))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
pathlib.Path(sys.argv[3]).write_text(json.dumps(peak))
"""


def write_corpus(folder, rows):
    """Writes pairs of which no two are equal, but which pass the filters."""
    words = ["red", "green", "blue", "seven", "apple", "tree", "house", "runs", "sleeps", "fast"]
    (folder / "fr-en").mkdir(parents=True)
    for side in ("fr", "en"):
        with gzip.open(folder / "fr-en" / f"train.{side}.gz", "wt", compresslevel=1) as file:
            for i in range(rows):
                text = " ".join(words[int(digit)] for digit in f"{i:07}")
                file.write(f"{text[::-1] if side == 'fr' else text}\n")


@pytest.mark.slow
def test_ten_times_the_text_needs_the_same_memory(tmp_path):
    peaks = {}
    # The chunks are small, so that the smaller corpus fills several too.
    for rows in (20_000, 200_000):
        write_corpus(tmp_path / str(rows), rows)
        words = [sys.executable, "-c", PROGRAM, tmp_path / str(rows), tmp_path / f"out{rows}"]
        subprocess.run([*words, tmp_path / f"peak{rows}"], check=True, env=os.environ)
        peaks[rows] = json.loads((tmp_path / f"peak{rows}").read_text())
    assert peaks[200_000] < 1.05 * peaks[20_000], peaks
