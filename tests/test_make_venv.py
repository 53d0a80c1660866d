"""`make venv` makes a virtual environment, and removes nothing else."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "make_venv.sh"


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "notes").write_text("years of work")
    done = subprocess.run(
        ["bash", SCRIPT, tmp_path / "precious"],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "is no virtual environment, and it is not empty; nothing was changed" in done.stderr
    assert (tmp_path / "precious" / "notes").read_text() == "years of work"
