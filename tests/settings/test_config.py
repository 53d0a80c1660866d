"""The classes of settings, the text of a config, and changes of it."""

import pathlib

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.settings.config import Decode, Train, configs_folder, differences, find_config
from gshard_nmt.settings.gin_reader import load_config


def test_replace_changes_fields_and_whole_parts_and_leaves_the_rest():
    config = load_config("demo")
    changed = config.replace(train={"steps": 7, "seed": 3}, decode=Decode(beam=2))
    assert (changed.train.steps, changed.train.seed) == (7, 3)
    assert changed.train.log_every == config.train.log_every
    assert changed.decode == Decode(beam=2)
    assert Decode(length_margin=9).settings().endswith(", alpha 0.6, length_margin 9")
    assert (changed.model, changed.mesh, changed.data) == (config.model, config.mesh, config.data)
    assert config == load_config("demo")


def test_replace_checks_the_new_values():
    with pytest.raises(UserError, match=r"Train\.steps is 0; it must be from 1"):
        load_config("demo").replace(train={"steps": 0})
    with pytest.raises(TypeError, match="stepps"):
        load_config("demo").replace(train={"stepps": 1})


def test_differences_name_the_settings_that_changed():
    assert differences(Train(), Train(steps=4, seed=2)) == [
        "Train.steps: 10000, now 4",
        "Train.seed: 1, now 2",
    ]
    assert differences(Decode(), Decode()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"length_ratio": 0.0, "length_margin": 0}, "Decode.length_margin"),
        ({"source_lengths": ()}, "Decode.source_lengths"),
        ({"beam": 0}, "Decode.beam"),
        ({"length_norm": "x"}, "Decode.length_norm"),
    ],
)
def test_an_error_names_the_settings_it_is_about(changes, named):
    with pytest.raises(UserError) as error:
        Decode(**changes)
    assert named in error.value.settings
    assert named in str(error.value)


@pytest.mark.parametrize("metric", ["dev_nll", "dev_bleu", "dev_nll/fr", "dev_bleu/pt_BR", ""])
def test_the_best_metric_is_a_score(metric):
    assert Train(best_metric=metric, bleu_sentences=5).metric == (metric or "dev_bleu")
    assert Train().metric == "dev_nll"


@pytest.mark.parametrize("metric", ["nll", "dev_bleu/", "dev_nll/fr/en", "loss", "dev_nll "])
def test_another_name_is_no_metric(metric):
    with pytest.raises(UserError, match=r"it must be 'dev_nll' or 'dev_bleu', with or without"):
        Train(best_metric=metric, bleu_sentences=5)


def test_bleu_chooses_only_if_it_is_computed():
    with pytest.raises(UserError, match=r"Train\.bleu_sentences is 0, so BLEU is not computed"):
        Train(best_metric="dev_bleu")
    with pytest.raises(UserError, match=r"Train\.keep_last is 1; it must be from 2"):
        Train(keep_last=1)


def test_an_unknown_config_name_lists_the_known_ones():
    with pytest.raises(UserError) as error:
        find_config("dmeo")
    message = str(error.value)
    assert message.startswith(
        "there is no config called 'dmeo'; did you mean 'demo'? Give the path of a .gin file, or "
        "one of the names: "
    )
    assert "baseline" in message


def test_a_missing_config_file_is_named():
    with pytest.raises(UserError, match=r"there is no file mine/demo\.gin; did you mean 'demo'"):
        find_config("mine/demo.gin")


def test_if_the_config_is_a_run_folder_the_error_names_the_file_in_it(tmp_path):
    (tmp_path / "config.gin").write_text("")
    with pytest.raises(UserError, match=r"is a folder; did you mean '.*config.gin'\?"):
        find_config(str(tmp_path))


def test_a_folder_does_not_hide_a_config_of_its_name(tmp_path, monkeypatch):
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_config("demo").name == "demo.gin"


def test_a_config_is_found_by_its_name_its_path_or_its_path_in_the_configs_folder(tmp_path):
    demo = configs_folder() / "experiments" / "demo.gin"
    assert find_config("demo") == demo
    assert find_config("experiments/demo.gin") == demo
    path = tmp_path / "my.gin"
    path.write_text("")
    assert find_config(str(path)) == pathlib.Path(path)
