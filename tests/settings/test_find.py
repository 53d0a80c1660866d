"""Configs are found by path, by name and in the configs folder."""

import pathlib

import pytest

from gshard_nmt.errors import UserError
from gshard_nmt.settings.find import configs_folder, find_config


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


def test_a_config_is_found_by_its_name_its_path_or_its_path_in_the_configs_folder(tmp_path):
    demo = configs_folder() / "experiments" / "demo.gin"
    assert find_config("demo") == demo
    assert find_config("experiments/demo.gin") == demo
    path = tmp_path / "my.gin"
    path.write_text("")
    assert find_config(str(path)) == pathlib.Path(path)
