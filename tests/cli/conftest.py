import json

import pytest

from tests.run.facts import data_facts


@pytest.fixture
def run_folder(tmp_path):
    """A folder with the config of a run from French and German."""
    from gshard_nmt.settings.gin_reader import load_config

    folder = tmp_path / "run"
    (folder / "checkpoints" / "5").mkdir(parents=True)
    (folder / "config.gin").write_text(load_config("demo").text)
    (folder / "data.json").write_text(json.dumps(data_facts(["fr", "de"])))
    return folder
