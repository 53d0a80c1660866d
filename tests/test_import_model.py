"""gshard-import: the run folder that it makes, and what it refuses."""

import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from gshard_nmt import outputs
from gshard_nmt.data.config import Data
from gshard_nmt.decoding.translator import restrictions
from gshard_nmt.errors import UserError
from gshard_nmt.exchange.huggingface import NEVER, read_config
from gshard_nmt.export import export
from gshard_nmt.import_model import _config, import_model
from gshard_nmt.model.config import Model
from gshard_nmt.run.arrays import step_functions, weight_specs
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import Changes, read_run_config
from gshard_nmt.spmd import runtime
from tests.data.synthetic import write_prepared_data
from tests.exchange.test_huggingface import GOLDENS, folder, imported

__all__ = ["folder"]

BEST = (Changes(), "best")


def test_a_run_folder_has_the_weights_vocabularies_and_directions(tmp_path, capsys):
    import_model(GOLDENS / "m2m_100", tmp_path / "run", ["en", "fr"])
    run = RunFolder(tmp_path / "run")
    config = read_run_config(run.config)
    assert run.direction("en", "") == ("en", "fr")
    assert [pair["language"] for pair in run.data["pairs"]] == ["fr", "fr"]
    source, target = run.vocabularies()
    assert source.size == target.size == run.data["source_vocabulary"]
    assert (config.decode.expansion, list(config.decode.source_lengths)) == ("fairseq", [16, 32])
    restored = weights_in(run.path)
    for name, weight in imported("m2m_100").weights.items():
        np.testing.assert_array_equal(restored[name], weight)
    out = capsys.readouterr().out
    assert "a model of the type m2m_100 with" in out
    assert out.endswith("--lang en --target fr\n")


def test_a_folder_that_is_not_empty_is_refused(folder):
    with pytest.raises(UserError, match="is not empty; give a new folder"):
        import_model(folder, folder)
    # Another program may make the folder after it was checked.
    late = mock.patch("gshard_nmt.import_model.outputs", mock.Mock(new_folder=outputs.new_folder))
    with late, pytest.raises(UserError, match=r"--workdir .*is not empty; give a new folder"):
        import_model(folder, folder)


@pytest.mark.parametrize(
    ("directions", "direction"),
    [
        ([("fr", "en"), ("de", "en")], "xx-en"),
        ([("fr", "es")], "as-named"),
        ([("fr", "es"), ("es", "fr")], "all"),
    ],
)
def test_text_to_train_it_further_needs_no_direction_that_the_model_lacks(directions, direction):
    config = _config(read_config(GOLDENS / "marian"), Model(), None, directions)
    assert config.data.direction == direction


def test_a_corpus_of_an_imported_model_may_be_named_in_either_order(tmp_path):
    folder = Path(shutil.copytree(GOLDENS / "marian", tmp_path / "model"))
    words = (folder / "vocab.json").read_text().replace(">>", "x").replace("<<", "x")
    (folder / "vocab.json").write_text(words)
    (folder / "tokenizer_config.json").write_text('{"source_lang": "fr", "target_lang": "es"}')
    import_model(folder, tmp_path / "run")
    assert RunFolder(tmp_path / "run").data["direction"] == "all"


def test_a_model_that_has_no_training_is_not_called_empty(tmp_path):
    import_model(GOLDENS / "m2m_100", tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    with pytest.raises(UserError, match=f"With --init_from {run.path} and a new") as error:
        run.claim(
            read_run_config(run.config), write_prepared_data(tmp_path / "data", Data(), {"fr": 3})
        )
    assert "nothing is lost" not in str(error.value)
    assert "Data.rows" not in str(error.value)


def test_positions_of_marian_are_for_marian(folder, tmp_path):
    with pytest.raises(UserError, match="--marian_positions is given, but"):
        import_model(folder, tmp_path / "run", marian_positions=True)
    import_model(GOLDENS / "marian", tmp_path / "run", marian_positions=True)
    config = read_run_config(tmp_path / "run" / "config.gin")
    assert config.model.positions == "sinusoidal"
    # Text to train on is that of the model's directions.
    assert (config.data.direction, config.train.freeze) == ("en-xx", ("output_bias",))
    export(tmp_path / "run", tmp_path / "out", *BEST, "huggingface")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (1, "has tensors that the model of its config.json does not have: model.encoder.layers.1.fc1"),
        (3, "the tensor model.encoder.layers.2."),
    ],
)  # fmt: skip
def test_weights_of_another_model_are_refused_and_leave_nothing(folder, tmp_path, layers, message):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"encoder_layers": layers}))
    with pytest.raises(UserError) as error:
        import_model(folder, tmp_path / "run")
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_model_of_marian_never_writes_pad_and_says_so_wherever_it_goes(tmp_path):
    folder = Path(shutil.copytree(GOLDENS / "marian", tmp_path / "model"))
    generation = json.loads((folder / "generation_config.json").read_text())
    pad = generation["bad_words_ids"][0][0]
    changed = generation | {"num_beams": 6, "length_penalty": 2.0, "suppress_tokens": [9]}
    (folder / "generation_config.json").write_text(json.dumps(changed))
    import_model(folder, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    assert read_run_config(run.config).decode.beam == 6
    order = imported("marian").orders["target"]
    suppressed = list(order.rows).index(9)
    never = restrictions(run)["never"]
    assert never == sorted({*order.never, suppressed})
    assert {int(order.rows[i]) for i in never} >= {pad, 9}
    # PAD was in no softmax of Marian; a suppressed token was.
    bias = weights_in(tmp_path / "run")["output_bias"]
    assert (bias[[0, 3]] == NEVER).all()
    assert bias[suppressed] > NEVER
    export(tmp_path / "run", tmp_path / "back", *BEST, "huggingface")
    back = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert changed.items() <= back.items()


def weights_in(folder):
    """Returns the weights of a run folder."""
    run = RunFolder(folder)
    config = read_run_config(run.config)
    specs = weight_specs(step_functions(config, run.data))
    devices = runtime.start(config.mesh)
    checkpoints = Checkpoints(run.checkpoints, identity=run.identity())
    restored = checkpoints.restore(lambda _: {"parameters": devices.abstract(specs)})
    return {name: np.asarray(array) for name, array in restored.groups["parameters"].items()}
