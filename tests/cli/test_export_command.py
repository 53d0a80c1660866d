"""gshard-export: its flags."""

import pytest

from gshard_nmt.cli import commands


@pytest.fixture
def exported(monkeypatch):
    """The arguments of each export."""
    calls = []
    monkeypatch.setattr("gshard_nmt.export.export", lambda *arguments: calls.append(arguments))
    return calls


def test_the_flags_name_the_run_the_folder_and_the_search(exported, tmp_path):
    flags = [f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}", "--format=savedmodel"]
    assert commands.export_program(flags) == 0
    assert commands.export_program([*flags, "--checkpoint=500", "--beam=2", "--alpha=0.8"]) == 0
    assert commands.main(["export", *flags, "--length_norm=lingvo", "--checkpoint=last"]) == 0
    assert exported == [
        (tmp_path, tmp_path / "out", {}, "best"),
        (tmp_path, tmp_path / "out", {"beam": 2, "alpha": 0.8}, "500"),
        (tmp_path, tmp_path / "out", {"length_norm": "lingvo"}, "last"),
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--out=out", "--format=huggingface"],
            "--format is 'huggingface'; it must be one of savedmodel. See gshard-export --help.",
        ),
        (
            ["--out=out"],
            "--format is missing. For example:\n  gshard-export --workdir runs/demo --out exported "
            "--format savedmodel\nSee gshard-export --help.",
        ),
        (
            ["--out=gs://bucket/out", "--format=savedmodel"],
            "--out gs://bucket/out",
        ),
        (
            ["--out=out", "--format=savedmodel", "--beam=0"],
            "--beam is '0'; it must be",
        ),
    ],
)
def test_a_mistake_writes_nothing(exported, tmp_path, capsys, flags, message):
    assert commands.export_program([f"--workdir={tmp_path}", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gshard-export: {message}")
    assert exported == []
