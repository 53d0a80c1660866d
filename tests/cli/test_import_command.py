"""gshard-import: its flags."""

import pytest

from gshard_nmt.cli import commands


@pytest.fixture
def imports(monkeypatch):
    """The arguments of each import."""
    calls = []
    monkeypatch.setattr("gshard_nmt.import_model.import_model", lambda *a: calls.append(a))
    return calls


def test_the_flags_name_the_folders_and_the_languages(imports, tmp_path):
    flags = [f"--from={tmp_path}", f"--workdir={tmp_path / 'run'}"]
    assert commands.import_program(flags) == 0
    assert commands.main(["import", *flags, "--languages", "en", "fr"]) == 0
    places = (tmp_path, tmp_path / "run")
    assert imports == [(*places, []), (*places, ["en", "fr"])]


def test_a_folder_that_does_not_exist_is_refused(imports, tmp_path, capsys):
    flags = [f"--from={tmp_path / 'gone'}", f"--workdir={tmp_path / 'run'}"]
    assert commands.import_program(flags) == 2
    assert (
        "there is no such folder; make it with save_pretrained of transformers."
        in capsys.readouterr().err
    )
    assert imports == []
