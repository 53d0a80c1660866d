import pytest

from tests.evaluation.run_folders import make_run


@pytest.fixture
def run_folder(tmp_path):
    """A folder with the config of a run from French and German."""
    from gshard_nmt.settings.gin_reader import load_config

    run = make_run(tmp_path / "run", config=load_config("demo").text)
    (run.checkpoints / "5").mkdir(parents=True)
    return run.path
