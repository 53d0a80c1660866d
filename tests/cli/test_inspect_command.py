import errno

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.settings.config import find_config


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "many"])
def test_a_wrong_number_of_tokens_is_an_error(capsys, value):
    assert commands.main(["inspect", "--config=demo", f"--tokens={value}"]) == 2
    assert capsys.readouterr().err.startswith(f"gshard-inspect: --tokens is '{value}'; it must be ")


DEMO = find_config("demo")
MISTAKES = [
    (["--equivalence", "--topology=nonsense", "--json=y.json"],
     "--json has no effect with --equivalence, which takes --devices besides --config and --gin. Leave "
     "it out, or choose another inspection.\n"),
    (["--devices=4"], "--devices has no effect on the default inspection, which takes --topology, "),
    (["--doctor", "--topology=v3:2x2"], "--topology has no effect with --doctor, which takes --data, "),
    (["--parameters", "--equivalence", "--doctor", "--devices=4"],
     "--parameters and --equivalence and --doctor are different inspections; give only "
     "one of them at a time.\n"),
    (["--advise", "--tokens=9"], "--tokens has no effect with --advise, which takes --topology, "),
    (["--advise"],
     "--advise is given 0 topologies; it takes exactly one. Name a TPU slice or GPUs with "
     "--topology, for "
     "instance v3:4x4.\n"),
    (["--advise", "--topology=cpu:8"],
     "--advise: cpu:8 has no times, because nothing is known about its links. Name a TPU slice "
     "or GPUs with --topology, for instance v3:4x4.\n"),
    ([f"--json={DEMO}"], f"--json {DEMO} is the config itself. Give it another file.\n"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_flags_that_an_inspection_does_not_use_are_refused(capsys, arguments, message):
    assert commands.main(["inspect", "--config=demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gshard-inspect: {message}")


def test_a_full_disk_after_compilation_is_an_error_that_names_the_flag(
    capsys, monkeypatch, tmp_path
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gshard_nmt.inspect_config.inspect_one", lambda *_: None)
    monkeypatch.setattr("gshard_nmt.inspect_config.report.report", lambda *_: "")
    monkeypatch.setattr("gshard_nmt.inspect_config.as_json", lambda inspection: {})
    monkeypatch.setattr("gshard_nmt.files.write", full)
    file = tmp_path / "report"
    assert commands.main(["inspect", "--config=demo", "--topology=cpu:2", f"--json={file}"]) == 2
    assert capsys.readouterr().err == (
        f"gshard-inspect: --json {file}: it cannot be written: No space left on device.\n"
    )
