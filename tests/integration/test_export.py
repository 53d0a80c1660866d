"""gshard-export, as a user runs it, and its SavedModel in a process that has no other library."""

import itertools
import json
import sys

import pytest

from tests.integration.conftest import WORDS, finished, program, succeed

LOAD = """
import json, sys
sys.modules.update(dict.fromkeys(("gshard_nmt", "jax", "sentencepiece")))  # not to be imported
import tensorflow as tf, tensorflow_text

folder, lines = sys.argv[1], json.load(sys.stdin)
translate = tf.saved_model.load(folder).signatures["serving_default"]
result = translate(text=tf.constant(lines), source=tf.constant("fr"), target=tf.constant("en"))
texts = [text.decode() for text in result["translations"].numpy()]
print(json.dumps([texts, result["scores"].numpy().tolist()]))
"""


@pytest.mark.slow
def test_a_fresh_process_gives_what_gshard_decode_gives(trained, tmp_path):
    words = [word[::-1] for word in WORDS]
    pairs = map(" ".join, zip(words[2:], words, strict=False))
    lines = [*words, " ".join(words), "", "né  5 € ", "\u3000", *pairs]
    # This model has hardly learned anything. A large alpha prefers translations that are not empty.
    search, out = ["--workdir", trained, "--gin", "Decode.alpha = 3"], tmp_path / "exported"
    told = succeed(program("export", *search, "--out", out, "--format", "savedmodel")).stdout
    assert f"tf.saved_model.load('{out}')" in told
    source = "".join(f"{line}\n" for line in lines)
    # An export protects nothing, such as the euro sign here.
    decode = ["decode", *search, "--lang", "fr", "--scores", "--protect", "off"]
    decoded = succeed(program(*decode, stdin=source)).stdout
    rows = [line.split("\t") for line in decoded.splitlines()]

    words = [sys.executable, "-I", "-c", LOAD, out]
    fresh = finished(words, input=json.dumps(lines), cwd=tmp_path)
    texts, scores = json.loads(succeed(fresh).stdout)
    assert texts == [text for _, _, text in rows]
    assert len(set(texts)) > 3
    # gshard-decode rounds a score to four digits.
    assert scores == pytest.approx([float(score) for _, score, _ in rows], abs=1.5e-4)


@pytest.mark.slow
def test_a_cut_run_translates_like_the_whole_one(prepared, trained, tmp_path):
    """All pieces that the text uses stay, so nothing changes."""
    out, corpus = tmp_path / "small", prepared / "corpus"
    cut = ["--format", "native", "--languages", "fr", "--corpus", corpus]
    succeed(program("export", "--workdir", trained, "--out", out, *cut))
    words = [word[::-1] for word in WORDS]
    lines = "".join(f"{a} {b}\n" for a, b in itertools.pairwise(words))
    rows = [
        [line.split("\t") for line in done.stdout.splitlines()]
        for run in (trained, out)
        for done in [
            succeed(program("decode", "--workdir", run, "--lang", "fr", "--scores", stdin=lines))
        ]
    ]
    assert [text for _, _, text in rows[1]] == [text for _, _, text in rows[0]]
    assert len(rows[0]) == len(words) - 1
    sizes = [sum(f.stat().st_size for f in (r / "checkpoints").rglob("*")) for r in (trained, out)]
    assert sizes[1] < sizes[0]
    refused = program("decode", "--workdir", out, "--lang", "de", stdin=lines)
    assert refused.returncode == 2
    assert "fr" in refused.stderr
