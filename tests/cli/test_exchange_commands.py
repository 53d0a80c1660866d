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
    assert commands.main(["export", *flags]) == 0
    assert commands.main(["export", *flags, "--checkpoint=500", "--beam=2", "--alpha=0.8"]) == 0
    assert commands.main(["export", *flags, "--length_norm=lingvo", "--checkpoint=last"]) == 0
    gin = ["--gin=Decode.rows = 8", "--gin=Decode.beam = 3"]
    assert commands.main(["export", *flags, *gin, "--beam=5"]) == 0
    assert [(*places, checkpoint) for *places, _, checkpoint, _ in exported] == [
        (tmp_path, tmp_path / "out", checkpoint) for checkpoint in ("best", "500", "last", "best")
    ]
    assert {form for *_, form in exported} == {"savedmodel"}
    settings = [
        {name: setting.value for (_, name), setting in changes.settings.items()}
        for _, _, changes, *_ in exported
    ]
    assert settings == [
        *({}, {"beam": 2, "alpha": 0.8}, {"length_norm": "lingvo"}),
        {"rows": 8, "beam": 5},  # a flag comes before --gin
    ]


# fmt: off
MISTAKES = [
    ("--format=onnx",
     "--format is 'onnx'; it must be one of savedmodel, huggingface, ctranslate2, native. See "
     "gshard-export --help."),
    ("",
     "--format is missing. For example:\n  gshard-export --workdir runs/demo --out exported --format "
     "savedmodel\nSee gshard-export --help."),
    ("--format=ctranslate2 --languages=de",
     "--languages, --corpus and --keep_choices make a smaller run folder, and --format is ctranslate2. "
     "Give --format native"),
    ("--format=huggingface --beam=2",
     "--beam has no effect with --format huggingface, which has no search."),
    ("--format=native --languages=de,fr",
     "--format native makes a smaller model and needs --languages and --corpus."),
    ("--format=native --languages=de --corpus=. --keep_choices=90",
     "--keep_choices is 90; it must be from 0 to 1."),
    ("--format=native --languages=de --corpus=. --beam=2 --gin=Decode.rows=4",
     "--beam, --gin: --format native keeps the settings of the run."),
    ("--format=savedmodel --out=gs://bucket/out", "--out gs://bucket/out"),
    ("--format=savedmodel --gin=Mesh.shape=(2,)",
     "--gin 'Mesh.shape=(2,)': Mesh.shape has no effect on this program. Here --gin takes only settings "
     "of Decode."),
    ("--format=savedmodel --gin=Model.heads=2",
     "--gin 'Model.heads=2': Model.heads belongs to the trained run, so it cannot change now. Here --gin "
     "takes only settings of Decode."),
]
# fmt: on


@pytest.mark.parametrize(("flags", "message"), MISTAKES)
def test_a_mistake_writes_nothing(exported, tmp_path, capsys, flags, message):
    assert commands.main(["export", f"--workdir={tmp_path}", "--out=out", *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"gshard-export: {message}")
    assert exported == []


def test_a_smaller_model_has_its_languages_and_corpus(monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(
        "gshard_nmt.export.export_smaller", lambda *arguments: calls.append(arguments)
    )
    flags = [f"--workdir={tmp_path}", f"--out={tmp_path / 'out'}", "--format=native"]
    flags += [f"--corpus={tmp_path}", "--keep_choices=0.98"]
    assert commands.main(["export", *flags, "--languages", "de", "fr"]) == 0
    assert commands.main(["export", *flags, "--languages=de,fr", "--checkpoint=last"]) == 0
    assert calls == [
        (tmp_path, tmp_path / "out", ["de", "fr"], tmp_path, 0.98, checkpoint)
        for checkpoint in ("best", "last")
    ]


@pytest.fixture
def imports(monkeypatch):
    """The arguments of each import."""
    calls = []
    monkeypatch.setattr("gshard_nmt.import_model.import_model", lambda *a: calls.append(a))
    return calls


def test_the_flags_name_the_folders_and_the_languages(imports, tmp_path):
    flags = [f"--from={tmp_path}", f"--workdir={tmp_path / 'run'}"]
    assert commands.main(["import", *flags]) == 0
    assert commands.main(["import", *flags, "--languages", "en", "fr"]) == 0
    places = (tmp_path, tmp_path / "run")
    assert imports == [(*places, []), (*places, ["en", "fr"])]


def test_a_folder_that_does_not_exist_is_refused(imports, tmp_path, capsys):
    flags = [f"--from={tmp_path / 'gone'}", f"--workdir={tmp_path / 'run'}"]
    assert commands.main(["import", *flags]) == 2
    assert (
        "there is no such folder; make it with save_pretrained of transformers."
        in capsys.readouterr().err
    )
    assert imports == []
