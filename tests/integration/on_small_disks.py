"""Runs commands on small disks, each first without room and then with room; see tests/faults.py."""

import contextlib
import dataclasses
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from gshard_nmt.cli import commands
from gshard_nmt.cli.flags import Command
from gshard_nmt.cli.runner import run
from tests.faults import Outcome, full_disk


def harvest(disk: Path, root: str) -> int:
    """gshard-data harvest, of one folder of catalogues."""
    from gshard_nmt.harvest import harvest

    return _run("gshard-data harvest", lambda _: harvest(disk / "out", [Path(root)], system=False))


def prepare(disk: Path, corpus: str, *gin: str) -> int:
    """gshard-data prepare."""
    flags = ["--config=demo", f"--corpus={corpus}", f"--out={disk / 'out'}", *gin]
    return commands.main(["data", "prepare", *flags])


def evaluate(disk: Path, run_folder: str, corpus: str) -> int:
    """gshard-eval of a run folder on the small disk, with translations that need no model."""
    from gshard_nmt.evaluate import Request, evaluate

    workdir = disk / "run"
    workdir.mkdir(exist_ok=True)
    for name in ("config.gin", "data.json"):
        if not (workdir / name).is_symlink():
            (workdir / name).symlink_to(Path(run_folder) / name)

    def translate(workdir: Path, source: str, target: str, lines: list[str], checkpoint: str):
        return [f"{line} {source}" for line in lines], "by hand", "step 6"

    def command(_: object) -> None:
        evaluate(workdir, {"": Path(corpus)}, "test", disk / "out", translate, Request())

    return _run("gshard-eval", command)


def train(disk: Path, prepared: str, *gin: str) -> int:
    """gshard-train in a process of its own, with the compiled programs of other runs."""
    workdir = Path(prepared) / "on_a_small_disk"
    workdir.mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", disk, workdir], check=True)
    flags = ["--config=demo", f"--data={prepared}/data", f"--workdir={workdir}", *gin]
    done = subprocess.run(
        [sys.executable, "-m", "gshard_nmt", "train", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    subprocess.run(["umount", workdir], check=True)
    workdir.rmdir()
    print(done.stderr, file=sys.stderr, end="")
    return done.returncode


def _run(name: str, function) -> int:
    return run(Command(name, "", "", (), lambda flags: None, function), [])


def _outcomes(request: dict, scratch: Path, command) -> Iterator[Outcome]:
    limits = [(f"{n} files", {"nr_inodes": n + 1}) for n in request["files"]]
    limits += [(f"{kb} kB", {"size": kb * 1000}) for kb in request["kb"]]
    for name, options in limits:
        disk = scratch / "disk"
        disk.mkdir()
        if request["namespaces"]:
            text = ",".join(f"{k}={v}" for k, v in options.items())
            subprocess.run(["mount", "-t", "tmpfs", "-o", text, "none", disk], check=True)
            limited = contextlib.nullcontext()
        elif "size" in options:
            limited = full_disk(options["size"])
        else:
            disk.rmdir()
            continue
        with limited:
            code, stderr = _captured(command, disk, request["arguments"])
        left = sorted(str(path.relative_to(disk)) for path in disk.rglob("*"))
        if code and request["namespaces"]:
            room = "size=1G" if "size" in options else "nr_inodes=100000"
            subprocess.run(["mount", "-o", f"remount,{room}", disk], check=True)
        again = _captured(command, disk, request["arguments"])[0] if code else 0
        yield Outcome(name, code, stderr, left, again)
        if request["namespaces"]:
            subprocess.run(["umount", disk], check=True)
        shutil.rmtree(disk)


def _captured(command, disk: Path, arguments: list[str]) -> tuple[int, str]:
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
        code = command(disk, *arguments)
    return code, stderr.getvalue()


if __name__ == "__main__":
    scratch = Path(sys.argv[2])
    request = json.loads((scratch / "request.json").read_text())
    outcomes = _outcomes(request, scratch, globals()[sys.argv[1]])
    listed = [dataclasses.asdict(outcome) for outcome in outcomes]
    (scratch / "outcomes.json").write_text(json.dumps(listed))
