import os
import pathlib
import subprocess
import sys

import pytest

from gshard_nmt import __version__
from gshard_nmt.cli import commands

ROOT = pathlib.Path(commands.__file__).parents[2]
PROGRAMS = {
    "gshard-data": commands.data_program,
    "gshard-checkpoint": commands.checkpoint_program,
    "gshard-train": commands.train_program,
    "gshard-decode": commands.decode_program,
    "gshard-eval": commands.eval_program,
    "gshard-export": commands.export_program,
    "gshard-import": commands.import_program,
    "gshard-inspect": commands.inspect_program,
    "gshard-serve": commands.serve_program,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_tells_its_version(capsys, name):
    assert PROGRAMS[name](["--version"]) == 0
    assert capsys.readouterr() == (f"gshard-nmt {__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            [],
            "the verb is missing. The verbs are: harvest, prepare, translate, show, plan, check. "
            "See gshard-data --help.",
        ),
        (
            ["harvets"],
            "there is no verb 'harvets'; did you mean 'harvest'? The verbs are: harvest, "
            "prepare, translate, show, plan, check. The verb comes first. See gshard-data --help.",
        ),
    ],
)
def test_gshard_data_needs_a_verb(capsys, arguments, message):
    assert commands.data_program(arguments) == 2
    assert capsys.readouterr() == ("", f"gshard-data: {message}\n")


def test_gshard_data_help_names_the_verbs(capsys):
    assert commands.data_program(["--help"]) == 0
    out, _ = capsys.readouterr()
    assert "gshard-data harvest" in out
    assert "gshard-data prepare" in out


def test_an_unknown_setting_is_an_error_even_if_the_command_does_not_use_it(capsys, tmp_path):
    arguments = ["prepare", "--config=demo", f"--corpus={tmp_path}", f"--out={tmp_path / 'data'}"]
    assert commands.data_program([*arguments, "--gin=Decode.bem = 3"]) == 2
    _, err = capsys.readouterr()
    assert err.startswith(
        "gshard-data prepare: --gin 'Decode.bem = 3': Decode has no setting 'bem'; did you mean "
        "'beam'? Decode has: method, beam, "
    )


def test_help_waits_for_no_library(tmp_path):
    code = (
        "import sys; from gshard_nmt.cli import commands; commands.data_program(['harvest', '--help']); "
        "heavy = {'tensorflow', 'jax', 'numpy', 'matplotlib', 'gin', 'rich'} & set(sys.modules); "
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (process.returncode, process.stderr) == (0, "")


def test_reading_a_config_imports_neither_tensorflow_nor_jax():
    code = (
        "import sys; from gshard_nmt.settings.gin_reader import load_config; load_config('demo'); "
        "heavy = {'tensorflow', 'jax', 'matplotlib'} & set(sys.modules); "
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--checkpoint=last"],
            "--checkpoint has no effect without --init_from. Add --init_from,",
        ),
        (
            ["--init_from=.", "--baselines_of=."],
            "--init_from and --baselines_of are given; baselines",
        ),
        (["--init_from=.", "--checkpoint=x"], "--checkpoint is 'x'; it must be best, last, a step"),
    ],
)
def test_a_wrong_start_from_another_run_is_an_error(capsys, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    words = ["train", "--config=demo", "--data=.", "--workdir=new", *flags]
    assert commands.main(words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
