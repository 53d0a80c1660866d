"""A run in a bucket has the numbers of a run on a disk."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.integration.conftest import environment, gin, program, succeed

TIMES = ("tokens_per_second", "seconds_per_step", "share_input", "share_step", "share_save")


def lines_of(run) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


@pytest.mark.slow
def test_a_run_in_a_bucket_is_equal_to_one_on_a_disk(prepared, tmp_path):
    shutil.copytree(prepared / "data", tmp_path / "data")
    words = [sys.executable, "-m", "tests.integration.in_a_bucket", tmp_path, prepared / "corpus"]
    variables = environment() | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    succeed(
        subprocess.run(
            words, capture_output=True, text=True, env=variables, check=False, timeout=600
        )
    )
    for steps in (4, 6):
        flags = ["--config", "demo", "--data", tmp_path / "data", "--workdir", prepared / "on_disk"]
        succeed(program("train", *flags, *gin(STEPS=steps)))
    bucket, disk = tmp_path / "downloaded", prepared / "on_disk"
    assert lines_of(bucket) == lines_of(disk)
    flags = ["--workdir", disk, "--lang", "fr", "--input", tmp_path / "text"]
    translation = succeed(program("decode", *flags)).stdout
    assert (tmp_path / "translation").read_text() == translation
    report = ["--corpus", prepared / "corpus", "--report", tmp_path / "of_disk"]
    succeed(program("eval", "--workdir", disk, *report))
    bleu = [
        json.loads((tmp_path / name / "bleu.json").read_text()) for name in ("report", "of_disk")
    ]
    assert bleu[0]["languages"] == bleu[1]["languages"]
    assert list((bucket / "decodes").iterdir())
    assert list((bucket / "tensorboard").iterdir())
    assert any((bucket / "checkpoints").rglob("commit_success.txt"))
