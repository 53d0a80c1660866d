import importlib.metadata
import json

import pytest

from gshard_nmt import cli, doctor
from gshard_nmt.doctor import Patient, examine


def problems(patient: Patient, area: str = "") -> list[str]:
    return [f.text for f in examine(patient) if f.is_problem and area in ("", f.area)]


def test_a_run_that_is_in_order_says_what_was_looked_at(tmp_path):
    findings = examine(Patient("demo", workdir=tmp_path / "not" / "yet"))
    assert [finding.area for finding in findings] == [
        "versions",
        "config",
        "mesh",
        "memory",
        "disk",
    ]
    assert not any(finding.is_problem for finding in findings)


def test_every_wrong_setting_is_named_at_once():
    wrong = [
        "Model.heads = 'a'",
        "Model.positions = 'round'",
        "Mesh.shape = (0,)",
        "Data.rows = 1.5",
        "Data.temperature = 0",
    ]
    found = problems(Patient("demo", wrong))
    assert len(found) == 5
    assert "Model.heads is 'a'; it must be a whole number without quotes." in found[0]
    assert "Model.positions is 'round'; it must be one of" in found[1]
    assert "Mesh.shape is [0]; every size must be 1 or more." in found[2]
    assert "Data.rows is 1.5; it must be a whole number." in found[3]
    assert "Data.temperature = 0" in found[4]


def test_every_size_that_does_not_divide_comes_with_the_nearest_legal_ones():
    found = problems(
        Patient("demo", ["Mesh.shape = (3,)", "Model.num_groups = 7", "Data.rows = 32"]), "mesh"
    )
    assert [text.partition(":")[0] for text in found] == [
        "Data.rows",
        "Decode.rows",
        "parameters/encoder/block/moe_0/wi",
        "Data.rows and Data.source_length",
        "Data.rows and Data.target_length",
    ]
    assert "the nearest legal sizes are 30 or 33" in found[0]
    assert "dimension E has size 8" in found[2]
    assert "[4, 8]" in found[3]


def test_prepared_data_of_another_vocabulary_and_longer_rows(tmp_path):
    data = {"direction": "xx-en", "vocabulary_model": "bpe", "language_tags": False}
    data |= {"source_length": 96, "target_length": 48}
    data |= {"source_vocabulary": 8000, "target_vocabulary": 5000}
    manifest = {"format": _format(), "data": data, "pairs": []}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    for side in ("source", "target"):
        (tmp_path / f"{side}.model").write_bytes(b"")
    patient = Patient("demo", ["Data.languages = ('fr',)"], data=tmp_path)
    assert problems(patient, "data") == [
        f"{tmp_path} holds examples of up to 96 tokens, and Data.source_length is 64; the nearest "
        "legal value is 96.",
        f"{tmp_path} was prepared with Data.target_vocabulary = 5000, and the config says 4000; the "
        "nearest legal value is 5000.",
        f"Data.languages names fr, which {tmp_path} does not hold; it has .",
    ]


def _format() -> str:
    from gshard_nmt.data.shards import FORMAT

    return FORMAT


def test_a_machine_that_is_too_small_is_told_by_how_much():
    big = ["EXPERTS = 2048", "Model.num_groups = 2", "Model.model_dim = 1024"]
    (found,) = problems(Patient("demo", [*big, "Model.expert_hidden_dim = 8192"]), "memory")
    assert "the training state takes" in found
    assert "times as many devices" in found


def test_a_topology_of_another_size_than_the_mesh():
    found = problems(Patient("demo", topologies=["v3:2x2", "v9"]))
    assert "Mesh.shape [2] is 2 devices and v3:2x2 has 8; sizes that multiply to 8" in found[0]
    assert "--topology v9: there is no such topology" in found[1]


def test_a_full_disk_is_found(monkeypatch, tmp_path):
    usage = doctor.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    (found,) = problems(Patient("demo", workdir=tmp_path), "disk")
    assert "three checkpoints take" in found
    assert f"of the 1,000 B free at {tmp_path}" in found


def test_versions_that_do_not_belong_together(monkeypatch):
    installed = {"jax": "0.10.2", "jaxlib": "0.9.0", "tensorflow": "2.20.0"}
    required = ["jax>=0.10.2,<0.11", "jaxlib>=0.10.2,<0.11", "rich>=13", "libtpu; extra == 'tpu'"]

    def version(name: str) -> str:
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: required)
    assert list(doctor.versions()) == [
        "jaxlib 0.9.0 is installed; gshard-nmt needs >=0.10.2,<0.11: pip install "
        "'jaxlib>=0.10.2,<0.11'.",
        "rich is not installed: pip install 'rich>=13'.",
        "jax 0.10.2 and jaxlib 0.9.0 are of different releases: pip install jaxlib==0.10.2.",
    ]


@pytest.mark.parametrize(
    ("version", "bound", "satisfied"),
    [
        ("2.21.0", ">=2.21", True),
        ("2.20.9", ">=2.21", False),
        ("0.11", "<0.11", False),
        ("1.2.3", "~=1.0", True),  # not judged
    ],
)
def test_bounds(version, bound, satisfied):
    assert doctor._satisfies(version, bound) is satisfied


def test_the_program_ends_with_the_number_of_problems(capsys):
    assert cli.inspect_program(["--config=demo", "--doctor", "--gin=Data.rows = 33"]) == 2
    captured = capsys.readouterr()
    assert "PROBLEM  mesh      Data.rows: dimension B has size 33" in captured.out
    assert "problem" in captured.err
    assert cli.inspect_program(["--config=demo", "--doctor"]) == 0
