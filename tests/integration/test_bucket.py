"""A run in a bucket has the numbers of a run on a disk."""

import json
import shutil
import sys

import pytest

from tests.integration.conftest import finished, lines_of, program, succeed

EQUAL = ("loss", "nll", "tokens", "learning_rate", "gradient_norm", "dev_nll/fr", "dev_nll/de")


def numbers_of(run) -> dict[tuple[int, str], float]:
    """Returns the numbers that do not depend on the machine, by step and name."""
    return {(x["step"], name): x[name] for x in lines_of(run) for name in EQUAL if name in x}


@pytest.mark.slow
def test_a_run_in_a_bucket_is_equal_to_one_on_a_disk(prepared, trained, tmp_path):
    """The run in the bucket is stopped after four of six steps."""
    shutil.copytree(prepared / "data", tmp_path / "data")
    words = [sys.executable, "-m", "tests.integration.in_a_bucket", tmp_path, prepared / "corpus"]
    succeed(finished(words))
    bucket, expected = tmp_path / "downloaded", numbers_of(trained)
    assert {key: numbers_of(bucket).get(key) for key in expected} == expected
    flags = ["--workdir", trained, "--lang", "fr", "--input", tmp_path / "text"]
    translation = succeed(program("decode", *flags)).stdout
    assert (tmp_path / "translation").read_text() == translation
    assert json.loads((tmp_path / "report" / "bleu.json").read_text())["languages"]
    assert list((bucket / "decodes").iterdir())
    assert list((bucket / "tensorboard").iterdir())
    assert any((bucket / "checkpoints").rglob("commit_success.txt"))
