"""gshard-export: which model it writes, what it says, and that it replaces nothing but an export."""

import json
import types
from unittest import mock

import numpy as np
import pytest

from gshard_nmt import __version__, export, outputs
from gshard_nmt.errors import UserError
from gshard_nmt.exchange import saved_model
from gshard_nmt.import_model import import_model
from gshard_nmt.settings.gin_reader import load_config, read_changes
from gshard_nmt.spmd.mesh import Mesh
from tests.evaluation.run_folders import make_run
from tests.exchange.test_huggingface import GOLDENS
from tests.test_import_model import BEST, weights_in

CONFIG = load_config("demo").replace(
    mesh=Mesh(("x", "y"), (4, 2), {"E": "x"}), decode={"source_lengths": (32, 8), "rows": 5}
)


class Tags:
    """A vocabulary whose tags say which direction was asked for."""

    def tags(self, source, target):
        return [10 * len(source) + len(target)]

    def first(self, target):
        return []


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder, and in `loaded` and `written` what was loaded and written."""
    folder = make_run(tmp_path / "run", config=CONFIG.text).path
    for side in ("source", "target"):
        (folder / f"{side}.model").write_text(f"the {side} pieces")
    weights = {"a/w": np.ones(3, np.float32), "b": np.zeros((2, 2), np.float32)}
    state = types.SimpleNamespace(path=folder, weights=weights, loaded=[], written=[])

    def load_translator(config, run, checkpoint):
        state.loaded.append((config, run.path, checkpoint))
        ids = types.SimpleNamespace(
            parameters=state.weights,
            search="the search",
            prepared_weights=lambda: {
                f"{name}/0": array * 2 for name, array in state.weights.items()
            },
        )
        return types.SimpleNamespace(of_ids=ids, step=7, checkpoint="step 7, ab12", origin="step 7")

    def write(model, folder):
        state.written.append(model)
        (folder / "saved_model.pb").write_bytes(b"x" * 1024)

    monkeypatch.setattr(export, "load_translator", load_translator)
    monkeypatch.setattr(saved_model, "write", write)
    monkeypatch.setattr("gshard_nmt.run.folder.RunFolder.vocabularies", lambda _: (Tags(), Tags()))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return state


def test_the_model_and_the_facts_of_a_run_are_written(run, tmp_path, capsys):
    out = tmp_path / "new" / "model"
    changes = read_changes(
        ["Decode.beam = 2", "Decode.length_norm = 'lingvo'", "Decode.alpha = 0.6"]
    )
    export.export(run.path, out, changes, "last", "savedmodel")
    ((config, folder, checkpoint),) = run.loaded
    assert (folder, checkpoint) == (run.path, "last")
    # Weights that were trained on many devices are read onto one.
    assert (config.mesh.shape, config.mesh.axes) == ((1, 1), ("x", "y"))
    assert (config.decode.beam, config.decode.length_norm, config.decode.alpha) == (
        2,
        "lingvo",
        0.6,
    )
    (model,) = run.written
    assert model.config == config
    assert model.search == "the search"
    # They are stored as decoding reads them, so that no call has to prepare them.
    assert {name: array.tolist() for name, array in model.weights.items()} == {
        "a/w/0": [2.0] * 3,
        "b/0": [[0.0] * 2] * 2,
    }
    assert (model.source_vocabulary, model.target_vocabulary) == (
        b"the source pieces",
        b"the target pieces",
    )
    assert model.directions == {("fr", "en"): [22], ("de", "en"): [22]}
    assert json.loads((out / "gshard_nmt.json").read_text()) == {
        "format": "gshard-nmt savedmodel 1",
        "version": __version__,
        "step": 7,
        "checkpoint": "step 7, ab12",
        "directions": [["fr", "en"], ["de", "en"]],
        "search": "beam 2, lingvo length norm, alpha 0.6",
        "source_lengths": [8, 32],
    }
    assert [path.name for path in out.parent.iterdir()] == ["model"]
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "step 7: tracing the search for sources of 8, 32 tokens"
    assert told[1].startswith(f"{out}: step 7 of {run.path}, 1.")
    assert f"tf.saved_model.load('{out}').signatures['serving_default']" in told[1]


def test_a_model_that_must_begin_with_a_tag_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Tags, "first", lambda self, target: [7])
    with pytest.raises(UserError, match="translations begin with a tag of their language"):
        export.export(run.path, tmp_path / "model", *BEST, "savedmodel")


def test_no_other_folder_is_replaced(run, tmp_path):
    export.export(run.path, tmp_path / "model", *BEST, "savedmodel")
    with pytest.raises(UserError, match="model is not empty; give a new folder"):
        export.export(run.path, tmp_path / "model", *BEST, "savedmodel")
    assert len(run.loaded) == 1
    # Another program may make the folder after it was checked.
    late = mock.patch.object(export, "outputs", mock.Mock(new_folder=outputs.new_folder))
    with late, pytest.raises(UserError, match="model is not empty; give a new folder"):
        export.export(run.path, tmp_path / "model", *BEST, "savedmodel")


def test_weights_that_are_not_finite_are_an_error(run, tmp_path):
    run.weights["b"][1, 0] = np.nan
    with pytest.raises(UserError) as error:
        export.export(run.path, tmp_path / "model", *BEST, "savedmodel")
    assert str(error.value) == (
        "the weight b of step 7 has values that are not finite, so the model cannot translate. Choose "
        "another checkpoint of the run."
    )
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("huggingface", "\n  Model.norm is 'rms'; it must be 'layer'\n"),
        ("ctranslate2", "layout of CTranslate2:\n  Model.experts is 8; it must be 0\n"),
    ],
)
def test_a_model_that_a_format_lacks_is_refused_before_its_weights_are_read(
    run, tmp_path, monkeypatch, form, message
):
    pieces = types.SimpleNamespace(content=b"", size=8)
    monkeypatch.setattr("gshard_nmt.run.folder.RunFolder.vocabularies", lambda _: (pieces, pieces))
    with pytest.raises(UserError) as error:
        export.export(run.path, tmp_path / "model", *BEST, form)
    assert message in str(error.value)
    assert run.loaded == []


def test_an_imported_model_is_exported_and_imported_again(tmp_path, capsys):
    golden = GOLDENS / "m2m_100"
    import_model(golden, tmp_path / "run", ["en", "fr"])
    export.export(tmp_path / "run", tmp_path / "exported", *BEST, "huggingface")
    for name in ("sentencepiece.bpe.model", "vocab.json", "special_tokens_map.json"):
        assert (tmp_path / "exported" / name).read_bytes() == (golden / name).read_bytes()
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert json.loads((golden / "config.json").read_text()).items() <= config.items()
    import_model(tmp_path / "exported", tmp_path / "again", ["en", "fr"])
    first, again = weights_in(tmp_path / "run"), weights_in(tmp_path / "again")
    assert first.keys() == again.keys()
    for name, values in first.items():
        np.testing.assert_allclose(again[name], values, rtol=3e-7, atol=0)
    for name in ("source.model", "target.model"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert "AutoModelForSeq2SeqLM.from_pretrained" in capsys.readouterr().out
    export.export(tmp_path / "run", tmp_path / "fast", *BEST, "ctranslate2")
    facts = json.loads((tmp_path / "fast" / "gshard_nmt.json").read_text())
    assert facts["format"] == "gshard-nmt ctranslate2 1"
    assert (tmp_path / "fast" / "model.bin").stat().st_size > 50_000
