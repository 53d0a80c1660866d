"""The run folder: whether a run may continue in it, and which directions it translates."""

import types

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.gin_reader import load_config


@pytest.fixture
def data(tmp_path):
    """The parts of prepared data that a run folder uses."""
    folder = tmp_path / "data"
    folder.mkdir()
    for side in ("source", "target"):
        (folder / f"{side}.model").write_bytes(side.encode())
    manifest = {"corpus_fingerprint": "abc"}
    pairs = [{"source": tag, "target": "en"} for tag in ("fr", "pt-BR")]
    summary = lambda config: {"pairs": pairs, **manifest}  # noqa: E731
    return types.SimpleNamespace(folder=folder, manifest=manifest, summary=summary)


@pytest.fixture
def run(tmp_path, data):
    """The folder of a run of the demo."""
    folder = RunFolder(tmp_path / "run")
    folder.claim(load_config("demo"), data)
    return folder


def test_a_run_may_continue_for_more_steps_on_another_mesh(run, data):
    config = load_config("demo").replace(train={"steps": 9999})
    run.claim(config.replace(mesh={"shape": (4,)}), data)
    assert "Train.steps = 9999" in run.config.read_text()


@pytest.mark.parametrize(
    ("part", "values", "message"),
    [
        ("model", {"model_dim": 64}, "Model.model_dim: 128, now 64"),
        ("data", {"seed": 7}, "Data.seed: 1, now 7"),
        ("optimizer", {"learning_rate": 0.5}, "Optimizer.learning_rate: 1.0, now 0.5"),
    ],
)
def test_every_setting_that_changed_is_in_the_error(run, data, part, values, message):
    before = run.config.read_text()
    with pytest.raises(UserError) as raised:
        run.claim(load_config("demo").replace(**{part: values}), data)
    assert f"\n  {message}\n" in str(raised.value)
    assert run.config.read_text() == before


def test_a_setting_that_the_run_does_not_know_yet_has_its_default(run, data):
    lines = run.config.read_text().splitlines(keepends=True)
    run.config.write_text("".join(line for line in lines if "label_smoothing" not in line))
    run.claim(load_config("demo"), data)


def test_another_corpus_is_an_error(run, data):
    data.manifest["corpus_fingerprint"] = "xyz"
    with pytest.raises(UserError, match="the corpus: fingerprint abc, now xyz"):
        run.claim(load_config("demo"), data)


def test_a_folder_with_other_files_is_not_touched(tmp_path, data):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    with pytest.raises(UserError, match="has files in it and is not a run folder"):
        RunFolder(tmp_path / "thesis").claim(load_config("demo"), data)
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter"]


def test_a_process_that_only_checks_does_not_make_the_folder(tmp_path, data):
    RunFolder(tmp_path / "run").claim(load_config("demo"), data, write=False)
    assert not (tmp_path / "run").exists()


def test_an_unknown_language_is_an_error_that_lists_the_known_ones(run):
    with pytest.raises(UserError) as raised:
        run.direction("pt", "")
    assert str(raised.value) == (
        "--lang pt: this model translates from fr, pt-BR; did you mean 'pt-BR'? Choose one of these."
    )
    with pytest.raises(UserError, match="--target de: this model translates from fr to en"):
        run.direction("fr", "de")
    with pytest.raises(UserError, match="--lang is missing: this model translates from fr, pt-BR"):
        run.direction("", "")
