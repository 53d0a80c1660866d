"""The real programs on a small corpus: train, stop, resume, decode, judge."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gshard_nmt.decode import RUN_FILES
from gshard_nmt.spmd import program_cache
from tests.faults import has_namespaces
from tests.integration.conftest import command, finished, gin, lines_of, program, succeed
from tests.run.checkpoints import whole_state


@pytest.fixture(scope="module")
def folder(prepared, trained) -> Path:
    """The small corpus, prepared, and a run of it that was trained."""
    return prepared


def test_a_run_folder_says_what_was_run(folder):
    run = folder / "run"
    steps = [line for line in lines_of(run) if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    names = {"loss", "nll", "aux_loss", "learning_rate", "tokens", "tokens_per_second"}
    assert names | {"overflow_fraction"} <= set(steps[0])
    dev = [line for line in lines_of(run) if "dev_nll/fr" in line]
    assert [line["step"] for line in dev] == [3, 6]
    assert {"dev_nll/de", "dev_bleu"} <= set(dev[0])
    assert "parameters/encoder/block/moe_0/wi" in (run / "parameters.txt").read_text()
    budget = json.loads((run / "budget.json").read_text())
    assert budget["steps"] == 6
    assert set(budget["tokens_by_language"]) == {"de", "fr"}
    assert sum(budget["tokens_by_language"].values()) == steps[-1]["tokens"]
    # None of these files may be an output of gshard-decode. A new file belongs on the list.
    assert {path.name for path in (folder / "run").iterdir()} <= {*RUN_FILES, "programs"}


def test_an_interrupted_run_ends_where_an_unbroken_one_does(folder):
    """Steps 1 to 4, then 5 and 6 by another process, give the same losses and state as six in one."""
    train = ["--config", "demo", "--data", folder / "data", "--workdir", folder / "parts"]
    succeed(program("train", *train, *gin(**{"Train.steps": 4})))
    succeed(program("train", *train, *gin(**{"Train.steps": 6})))
    losses = [
        [line["loss"] for line in lines_of(folder / name) if "loss" in line]
        for name in ("parts", "run")
    ]
    assert losses[0] == losses[1]
    parts, run = (whole_state(folder / name / "checkpoints")[0] for name in ("parts", "run"))
    assert {name.partition("/")[0] for name in run} == {"parameters", "ema", "optimizer", "input"}
    assert parts.keys() == run.keys()
    for name, array in run.items():
        assert parts[name].tobytes() == array.tobytes(), name


def test_sigterm_saves_and_a_second_trainer_is_refused_until_then(folder):
    arguments = ["--config", "demo", "--data", folder / "data", "--workdir", folder / "killed"]
    arguments += gin(**{"Train.steps": 100_000, "Train.checkpoint_every": 100_000})
    arguments += ["--gin=Train.dev_every = 0"]
    with subprocess.Popen(
        command("train", *arguments), stderr=subprocess.PIPE, text=True
    ) as process:
        seen = ""
        for line in process.stderr:
            seen += line
            if line.startswith("step 3/"):
                second = program("train", *arguments)
                process.send_signal(signal.SIGTERM)
                break
        seen += process.stderr.read()
        assert process.wait(60) == 130, seen
    assert "the same command goes on from there" in seen
    # A second trainer in the same folder is refused, and changes nothing.
    assert second.returncode == 2
    assert f"is in use: process {process.pid} on " in second.stderr
    assert not (folder / "killed" / "trainer.lock").exists()
    assert json.loads((folder / "killed" / "budget.json").read_text())["steps"] >= 3


DECODE_AND_RECORD = """
import pathlib, sys

opened = []
READS = ("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.utime")
sys.addaudithook(lambda event, values: opened.append(str(values[0])) if event in READS else None)
from gshard_nmt.cli import commands
code = commands.main(["decode", *sys.argv[2:]])
pathlib.Path(sys.argv[1]).write_text("\\n".join(opened))
sys.exit(code)
"""


def contents_of(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Returns the time of the last change and the bytes of every file, and the times of folders."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [folder, *folder.rglob("*")]
    }


def with_read_only(folder: Path) -> list[str]:
    """Returns how a command begins that sees a folder read-only, also as root; [] without namespaces."""
    if not has_namespaces():
        return []
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && ! touch "$0/x" 2>&- && exec "$@"'
    return ["unshare", "-Urm", "sh", "-c", mount, str(folder)]


def test_decoding_keeps_lines_in_order_and_starts_from_the_cache_of_the_user(folder, tmp_path):
    """It works with a read-only run folder, and reads no program that the folder brings."""
    text = "der\n\n" + " ".join(["neerg"] * 5) + "\nelppa eert\n"
    flags = ["--workdir", folder / "run", "--lang", "fr"]
    assert list((folder / "programs").glob("*.jaxexport"))
    before = contents_of(folder / "run")
    words = [sys.executable, "-c", DECODE_AND_RECORD, tmp_path / "opened", *flags]
    done = finished([*with_read_only(folder / "run"), *words], input=text)
    assert len(succeed(done).stdout.split("\n")) == 5
    assert done.stdout.split("\n")[1] == ""
    opened = (tmp_path / "opened").read_text().splitlines()
    cache = program_cache.user_cache()
    assert any(path.startswith(str(cache)) for path in opened)
    assert not [path for path in opened if path.startswith(str(folder / "programs"))]
    assert contents_of(folder / "run") == before
    flags += ["--scores", "--checkpoint", "average:2", "--trust_programs"]
    # The second line has more tokens than a row of the encoder, so it is translated in pieces.
    scored = succeed(program("decode", *flags, stdin="der\n" + "elppa eert. " * 8 + "\n"))
    columns = [line.split("\t") for line in scored.stdout.splitlines()]
    assert [row[0] for row in columns] == ["1", "2"]
    assert scored.stderr.splitlines()[-1] == "more than 16 tokens, so translated in pieces: line 2."
