"""The real programs: a run starts from another one, is resumed, and decoded."""

import json

import pytest

from tests.integration.conftest import gin, program, succeed
from tests.run.checkpoints import whole_state


@pytest.mark.slow
def test_more_experts_and_a_frozen_encoder_start_from_a_run_and_are_resumed(prepared, trained):
    settings = {"EXPERTS": 8, "Train.freeze": ("encoder/*", "source_embedding"), "Train.ema": 0}
    folder = prepared / "started"
    words = ["--config", "demo", "--data", prepared / "data", "--workdir", folder]
    origin = ["--init_from", trained, "--checkpoint", "last"]
    first = succeed(program("train", *words, *origin, *gin(**settings, **{"Train.steps": 4})))
    lines = first.stdout.splitlines()
    record = json.loads((folder / "init.json").read_text())
    assert [line.split()[0] for line in lines[1:]] == [row["array"] for row in record["arrays"]]
    (gate,) = [line for line in lines if line.startswith("decoder/block/moe_0/gate")]
    assert gate.endswith("expert j begins as expert j mod 4")
    assert f"starting from {trained}, step 6 (Train.ema): of " in first.stderr
    # Without the flag, and with the flag, the run goes on; another flag is refused.
    second = succeed(program("train", *words, *gin(**settings, **{"Train.steps": 5})))
    assert (second.stdout, "resuming" in second.stderr) == ("", True)
    succeed(program("train", *words, *origin, *gin(**settings, **{"Train.steps": 6})))
    refused = program("train", *words, "--init_from", trained, *gin(**settings))
    assert refused.returncode == 2
    assert "checkpoint best, but the run in --workdir" in refused.stderr
    before, _ = whole_state(trained / "checkpoints")
    after, manifest = whole_state(folder / "checkpoints")
    assert manifest.step == 6
    assert manifest.facts["moment_steps"] == 6
    for name, array in after.items():
        group, _, weight = name.partition("/")
        if group == "parameters" and "moe" not in weight:
            is_frozen = weight.startswith("encoder") or weight == "source_embedding"
            is_equal = array.tobytes() == before[f"ema/{weight}"].tobytes()
            assert is_equal == is_frozen, name
        assert not (group == "optimizer" and "encoder/block" in weight), name
    line = succeed(program("decode", "--workdir", folder, "--lang", "fr", stdin="der neerg\n"))
    assert line.stdout.count("\n") == 1
