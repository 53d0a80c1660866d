"""The benchmark of accelerators: a step is lowered with TensorFlow and runs without it."""

import pathlib
import re
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).parents[2] / "benchmarks" / "accelerator.py"
SMALL = {
    "Model.encoder_layers": 0,
    "Model.decoder_layers": 2,
    "Model.model_dim": 8,
    "Model.hidden_dim": 16,
    "Model.heads": 1,
    "Model.head_dim": 8,
    "Data.source_vocabulary": 320,
    "Data.target_vocabulary": 320,
    "Data.rows": 8,
    "Data.source_length": 8,
    "Data.target_length": 8,
    "Mesh.shape": (2,),
    "Mesh.overrides": {"*target_embedding": {"V": "x"}},
}


def test_a_lowered_step_runs_without_tensorflow(load, tmp_path):
    folder = tmp_path / "step"
    program = load("accelerator")
    settings = [f"{name} = {v}" for name, v in SMALL.items()]
    program.lower(folder, settings, program.workload_of('{"precision": "float32"}'))
    blocked = ("tensorflow", "tensorflow_text", "gin", "sentencepiece", "sacrebleu", "orbax")
    code = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({blocked!r})); "
        f"sys.path.insert(0, {str(PROGRAM.parent)!r}); "
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')"
    )
    words = [sys.executable, "-c", code, "run", folder, "--steps", "3", "--peak_tflops", "1"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^2 x cpu .* ms a step .* in 3 steps\), [\d,]+ places/s", done.stdout, re.M)
    before, after = map(float, re.search(r"loss ([\d.]+) to ([\d.]+)", done.stdout).groups())
    assert 5 < after < before < 8  # the logarithm of 320 is 5.8
    gflop = float(re.search(r"^([\d.e-]+) GFLOP a step", done.stdout, re.M).group(1))
    # Three products of 64 x 8 and 8 x 320 for the logits, and no more than ten times as much in all.
    logits = 3 * 2 * 64 * 8 * 320 / 1e9
    assert logits < gflop < 10 * logits
    assert "% of the peak" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("lower", "STEP", "--setting", "Model.expert = 3"), "Model.expert"),
        (("lower", "STEP", "--workload", '{"expert": 3}'), "fields of benchmarks/trainers/workload.py"),
        (("lower", "STEP", "--workload", "experts=3"), "give JSON"),
        (("run", "STEP", "--steps", "0"), "--steps is 0"),
        (("peer", "--peak_tflops", "0"), "--peak_tflops is 0"),
    ],
)  # fmt: skip
def test_a_wrong_setting_or_number_is_an_error(load, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["accelerator.py", *words])
    assert load("accelerator").main() == 2
    assert message in capsys.readouterr().err
