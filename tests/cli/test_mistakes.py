"""Every wrong path of every flag: exit code 2, one line that names the flag, and no changed file."""

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from gshard_nmt.cli import commands
from gshard_nmt.data.config import Data
from gshard_nmt.data.sets.corpus import write_pairs
from gshard_nmt.settings.gin_reader import load_config
from tests.data.synthetic import write_prepared_data
from tests.evaluation.run_folders import make_run

GOOD = {
    "data harvest": {"out": "new", "root": "corpus"},
    "data prepare": {"config": "demo", "corpus": "corpus", "out": "new"},
    "train": {"config": "demo", "data": "data", "workdir": "new", "baselines_of": "run"},
    "adding": {"add_language": "nn", "init_from": "run", "data": "corpus", "workdir": "new"},
    "decode": {"workdir": "run", "lang": "fr", "input": "text", "output": "new"},
    "eval": {"workdir": "run", "corpus": "corpus", "baselines": "scores.json", "report": "new"},
    "published": {"workdir": "run", "test_set": "corpus", "report": "new"},
    "export": {"workdir": "run", "out": "new", "format": "savedmodel"},
    "native": {
        "workdir": "run",
        "out": "new",
        "format": "native",
        "languages": "fr",
        "corpus": "corpus",
    },
    "import": {"from": "run", "workdir": "new"},
    "inspect": {"config": "demo", "topology": "cpu:2", "json": "new"},
    "serve": {"workdir": "run", "port": "0"},
    "data show": {"config": "demo", "data": "data"},
    "data plan": {"config": "demo", "data": "data", "out": "new.json"},
    "data check": {"config": "demo", "corpus": "corpus", "report": "new.json"},
    "data translate": {"workdir": "run", "lang": "fr", "input": "text", "out": "new"},
    "checkpoint list": {"workdir": "run"},
    "checkpoint verify": {"workdir": "run"},
    "checkpoint diff": {"workdir": "run", "other": "run"},
    "checkpoint average": {"workdir": "run", "last": "2", "out": "new"},
}
"""A good command line of each program; the paths are in the folder of the test.

"published" stands for gshard-eval on a published test set, "adding" for gshard-train that adds a
language, "native" for gshard-export of a smaller model.
"""
NAMES = {"published": "eval", "adding": "train", "native": "export"}

READ_FOLDERS = [
    *[
        ("data harvest", "root"),
        ("data prepare", "corpus"),
        ("data prepare", "vocabulary_of"),
        ("train", "data"),
        ("train", "baselines_of"),
        ("train", "init_from"),
    ],
    *[("adding", "data"), ("adding", "replay"), ("adding", "init_from")],
    *[("decode", "workdir"), ("eval", "workdir"), ("eval", "corpus")],
    *[("import", "from"), ("export", "workdir"), ("published", "test_set")],
    ("native", "corpus"),
    *[("serve", "workdir"), ("data show", "data"), ("data plan", "data"), ("data check", "corpus")],
    *[(f"checkpoint {verb}", "workdir") for verb in ("list", "verify", "diff", "average")],
    *[("checkpoint diff", "other"), ("data translate", "workdir")],
]
WRITTEN_FOLDERS = [
    *[("data harvest", "out"), ("data prepare", "out"), ("train", "workdir"), ("eval", "report")],
    ("adding", "workdir"),
    *[("import", "workdir"), ("export", "out"), ("checkpoint average", "out")],
    ("data translate", "out"),
]
REPLACED_FOLDERS = [
    *[("data harvest", "out"), ("data prepare", "out"), ("import", "workdir"), ("export", "out")],
    *[("native", "out"), ("checkpoint average", "out")],
]
READ_FILES = [
    *[("data prepare", "config"), ("train", "config"), ("inspect", "config"), ("decode", "input")],
    *[("decode", "prefix"), ("decode", "score"), ("data translate", "input")],
    *[(f"data {verb}", "config") for verb in ("show", "plan", "check")],
    *[("decode", "glossary"), ("data translate", "glossary"), ("serve", "glossary")],
]
WRITTEN_FILES = [("decode", "output"), ("inspect", "json")]

NOWHERE = ["text/below a file", "gone", "a link to nothing", "a circle", "a circle/x", "x" * 300]
IMPOSSIBLE = ["text/below a file", "a circle", "a circle/x", "x" * 300, "/proc/x"]
ENDED_FILES = [("data plan", "out"), ("data check", "report")]
"""Files to write whose names have an ending."""


def each(flags: Sequence[tuple[str, str]], kinds: Sequence[str]) -> list[tuple[str, str, str]]:
    """Returns one wrong path for each flag. The kinds take turns: one mechanism refuses them all."""
    return [(*flag, kinds[number % len(kinds)]) for number, flag in enumerate(flags)]


MISTAKES = [
    *each(READ_FOLDERS, ["text", *NOWHERE]),
    *each(WRITTEN_FOLDERS, ["text", "a link to nothing", *IMPOSSIBLE]),
    *each(REPLACED_FOLDERS[:2], ["a mount point"]),
    *each(READ_FILES, ["a folder", *NOWHERE]),
    *each([*WRITTEN_FILES, *WRITTEN_FILES], ["a folder", "gone/x", "text/below a file", "/proc/x"]),
    *each(ENDED_FILES, ["a folder.json", "gone/x.json"]),
    *each([("eval", "baselines")] * 2, ["text", "gone"]),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with everything that the good command lines read."""
    root = tmp_path_factory.mktemp("mistakes")
    config = load_config("demo").data
    write_prepared_data(root / "data", Data(target_length=config.target_length), {"fr": 4})
    for split in ("train", "test"):
        write_pairs(root / "corpus" / "fr-en", split, "fr", "en", [("un", "one")])
    make_run(root / "run", ["fr"], load_config("demo").text)
    (root / "scores.json").write_text('{"fr": 30.1}')
    (root / "text").write_text("un\n")
    (root / "a folder").mkdir()
    (root / "a folder.json").mkdir()
    (root / "a mount point").mkdir()
    (root / "a link to nothing").symlink_to("nowhere")
    (root / "a circle").symlink_to("a circle")
    return root


def contents(root: Path) -> dict[str, str]:
    """Returns the content of each file and link below a folder, and the names of its folders."""
    result = {}
    for place, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink():
                result[str(path)] = os.readlink(path)
            else:
                content = path.read_bytes() if path.is_file() else b"folder"
                result[str(path)] = hashlib.sha256(content).hexdigest()
    return result


@pytest.mark.parametrize(("program", "flag", "wrong"), MISTAKES)
def test_a_wrong_path_is_a_message_and_nothing_is_changed(
    folder, monkeypatch, capsys, program, flag, wrong
):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "a mount point")
    # What takes long must not begin.
    monkeypatch.setattr("gshard_nmt.harvest.read_and_split", pytest.fail)
    monkeypatch.setattr("gshard_nmt.decode.load_translator", pytest.fail)
    monkeypatch.setattr("gshard_nmt.inspect_config.inspect_one", pytest.fail)
    before = contents(folder)
    arguments = [f"--{name}={value}" for name, value in (GOOD[program] | {flag: wrong}).items()]
    assert commands.main([*NAMES.get(program, program).split(), *arguments]) == 2
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    (message,) = [line for line in err.splitlines() if line.startswith("gshard-")]
    assert wrong[:200] in message
    assert out == ""
    assert contents(folder) == before


def test_the_table_has_every_flag_that_takes_a_path():
    """A new flag with a placeholder such as DIR or FILE must be added to the table."""
    from gshard_nmt.cli.flags import Flags

    tested = {(NAMES.get(program, program), flag) for program, flag, _ in MISTAKES}
    of_the_doctor = {("inspect", "data"), ("inspect", "workdir")}
    every = commands.COMMANDS | {
        f"{program} {verb}": command
        for program, verbs in commands.VERBS.items()
        for verb, command in verbs.items()
    }
    for program, command in every.items():
        defined = Flags()
        command.define(defined)
        for flag, placeholder in defined.placeholders.items():
            if {"DIR", "FILE", "RUN"} & set(re.split(r"\W+", placeholder)):
                assert (program, flag) in tested | of_the_doctor


def test_the_doctor_lists_wrong_paths(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    wrong = ["--data=text", "--workdir=text/below a file"]
    assert commands.main(["inspect", "--config=demo", "--doctor", *wrong]) == 2
    out, err = capsys.readouterr()
    assert "PROBLEM  data    --data text: there is no such folder" in out
    assert "PROBLEM  disk    --workdir text/below a file: " in out
    assert err.startswith("gshard-inspect: 2 problems with demo")
