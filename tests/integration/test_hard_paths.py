"""The commands of docs/your_own_text.md with `..`, `.`, links, spaces and any script in their paths."""

import os
import shutil
import subprocess

import pytest

from tests.integration.conftest import gin, program, share_programs, succeed

pytestmark = pytest.mark.slow


@pytest.fixture
def here(prepared, trained, tmp_path):
    """A folder beside the corpus, a text, and a link to a place with the programs of a run."""
    shutil.copytree(prepared / "corpus", tmp_path / "mein körper")
    for folder in ("start here", "far/disk/运行"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "link").symlink_to("far/disk")
    share_programs(tmp_path / "far/disk/运行")
    shutil.copytree(prepared / "untouched/run/programs", tmp_path / "far/disk/运行/programs")
    (tmp_path / "new text").write_text("der\nneerg der\n")
    return tmp_path / "start here"


def test_the_commands_work_with_any_name_and_from_any_folder(here):
    """`link/..` is `far`, and not the folder of the link."""

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess:
        return succeed(program(name, *arguments, cwd=here))

    settings = gin(**{"Train.dev_every": 0})
    corpus, data = "--corpus=../mein körper/.", "../link/../data"
    run("data", "prepare", "--config=demo", *settings, corpus, f"--out={data}")
    assert os.listdir(here.parent / "far" / "data")
    train = ["--config=demo", f"--data={data}", "--workdir=../link/./运行/../运行/a run"]
    run("train", *train, *settings, "--gin=STEPS = 2")
    resumed = run("train", *train, *settings, "--gin=STEPS = 4")
    assert "step 4/4" in resumed.stderr
    assert "step 1/4" not in resumed.stderr
    workdir = "--workdir=../link/运行/a run"
    verified = run("checkpoint", "verify", workdir.replace("link", "far/../link"))
    assert "step 4: " in verified.stdout
    assert "damaged" not in verified.stdout
    run("decode", workdir, "--lang=fr", "--input=../new text", "--output=../link/../новый текст")
    assert len((here.parent / "far" / "новый текст").read_text().splitlines()) == 2
    run("eval", workdir, corpus, "--split=test", "--report=./../link/../an evaluation")
    assert (here.parent / "far" / "an evaluation" / "index.html").is_file()
    assert sorted(os.listdir(here.parent / "far")) == [
        "an evaluation",
        "data",
        "disk",
        "новый текст",
    ]
