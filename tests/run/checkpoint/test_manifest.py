"""The manifest: its text, and what it refuses."""

import contextlib
import json

import numpy as np
import pytest

from gshard_nmt.reading import UnsoundError
from gshard_nmt.run.checkpoint.manifest import Manifest, Scores, Tensor

SUMS = np.arange(6, dtype=np.uint32).reshape(2, 3) + np.uint32(2**32 - 3)
MANIFEST = Manifest(
    step=7,
    tensors={"parameters": {"w": Tensor((2, 3, 4), "bfloat16", "REM", SUMS, 5)}},
    files={"config": "aa"},
    facts={"tokens": {"fr": 2**60}},
    scores=Scores({"dev_nll": 1.25}, {"beam": 4}),
    average_of=("run/5", "run/6"),
)


def test_it_is_read_as_it_was_written():
    parsed = Manifest.parse(MANIFEST.text)
    tensor = parsed.tensors["parameters"]["w"]
    np.testing.assert_array_equal(tensor.sums, SUMS)
    assert (tensor.shape, tensor.dtype, tensor.letters) == ((2, 3, 4), "bfloat16", "REM")
    for name in ("step", "files", "facts", "scores", "average_of", "version", "saved_at"):
        assert getattr(parsed, name) == getattr(MANIFEST, name)
    assert parsed.text == MANIFEST.text
    assert parsed.places == {("parameters", "w"): 5}
    assert parsed.nbytes == 48


def test_each_changed_byte_is_noticed_or_changes_nothing():
    text = MANIFEST.text.encode()
    for place in range(len(text)):
        for mask in (1, 32):
            changed = bytearray(text)
            changed[place] ^= mask
            with contextlib.suppress(UnsoundError):
                assert Manifest.parse(changed.decode(errors="replace")).text == MANIFEST.text


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", '{"sha256": 1, "manifest": []}', "nonsense"])
def test_what_is_no_manifest_is_damaged(text):
    with pytest.raises(UnsoundError, match=r"^manifest\.json is damaged"):
        Manifest.parse(text)


def test_the_damaged_experts_are_named():
    tensor = MANIFEST.tensors["parameters"]["w"]
    assert tensor.differing(SUMS) == ""
    changed = SUMS.copy()
    changed[1, 2] += 1
    assert tensor.differing(changed) == "repeat 1, expert 2"
    text = "repeat 0, expert 0; repeat 0, expert 1; repeat 0, expert 2 and 3 more"
    assert tensor.differing(SUMS + np.uint32(1)) == text
    whole = Tensor((2,), "float32", "M", np.array(5, np.uint32))
    assert whole.differing(np.array(6, np.uint32)) == "all of it"


def test_an_average_has_only_weights():
    message = (
        "it is an average of run/5, run/6 and has only weights: it can be decoded, not trained"
    )
    with pytest.raises(UnsoundError, match=message):
        MANIFEST.check_arrays("optimizer", {})


def test_the_text_is_plain_json():
    record = json.loads(MANIFEST.text)
    assert record["manifest"]["tensors"]["parameters"]["w"][3][:16] == "fffffffdfffffffe"
