"""An example as a program, compiled for a TPU slice; tests/multidevice/test_examples.py trains them."""

import json
import pathlib
import sys

import pytest

from tests.integration.conftest import finished, succeed, usual_flags

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "unet3d.py"


@pytest.mark.slow
def test_a_u_net_compiled_for_a_tpu_sends_halos_and_sums_and_gathers_no_image(tmp_path):
    file = tmp_path / "cost.json"
    flags = ["--image", "16", "--levels", "2", "--mesh", "2x4", "--compile_for", "v3:2x2", "--json"]
    done = succeed(finished([sys.executable, PROGRAM, *flags, file], env=usual_flags()))
    assert "predicted time: " in done.stdout
    cost = json.loads(file.read_text())
    assert cost["seconds"] > 0
    assert cost["peak_bytes"] > cost["argument_bytes"]
    kinds = {kind for kind, sent in cost["collectives"].items() if sent["tensors"]}
    assert kinds == {"collective-permute", "all-reduce"}
