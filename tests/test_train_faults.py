"""Training that is killed, starved or damaged at every moment ends in the state of an undisturbed run."""

import contextlib
import functools
import json
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gshard_nmt import train
from gshard_nmt.cli.runner import user_message
from gshard_nmt.errors import UserError
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints
from gshard_nmt.run.checkpoint.tensor_files import COMMIT_FILE
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.run.lock import LOCK_NAME
from tests.faults import full_disk
from tests.run.checkpoints import files_of, whole_state
from tests.train_loop import CONFIG, Step, Steps, prepared

__all__ = ["prepared"]


before_step: dict[int, Callable[[], object]] = {}
"""What a test does before a step."""


class ReadingStep(Step):
    """Adds a number of the batch to the weights, so none is lost or repeated, and keeps their average."""

    def __call__(self, state, batch, control):
        before_step.get(int(state["step"]) + 1, bool)()
        state, metrics = super().__call__(state, batch, control)
        host = {name: np.array(array) for name, array in state.items()}
        host["parameters/w"] += np.asarray(batch["source_ids"]).sum() % 1009 * host["step"]
        host["ema/w"] += 0.25 * (host["parameters/w"] - host["ema/w"])
        return self.steps.devices.put(host, self.steps.state_specs), metrics


class ReadingSteps(Steps):
    @property
    def state_specs(self):
        return super().state_specs | {"ema/w": super().state_specs["parameters/w"]}

    @property
    def train_step(self):
        return ReadingStep(self)


@pytest.fixture(autouse=True)
def python_steps(monkeypatch):
    monkeypatch.setattr(train, "CompiledSteps", ReadingSteps)
    before_step.clear()


def start(prepared, workdir: Path, **changes) -> bool:
    return train.train(CONFIG.replace(train=changes), prepared.folder, workdir)


def end_of(workdir: Path) -> dict[str, object]:
    """Returns what the newest checkpoint holds, the lines of the log, and the names of all files."""
    arrays, manifest = whole_state(workdir / "checkpoints")
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    names = [path.relative_to(workdir) for path in files_of(workdir)]
    return {
        "arrays": {name: (array.dtype, array.tobytes()) for name, array in arrays.items()},
        "facts": {name: fact for name, fact in manifest.facts.items() if name != "seconds"},
        "losses": [(line["step"], line["loss"]) for line in lines],
        "files": sorted(str(n) for n in names if n.parts[0] not in BESIDE),
        "checkpoints": Checkpoints(workdir / "checkpoints").steps(),
        "budget": {**RunFolder(workdir).budget(), "seconds": None},
    }


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory):
    """What a run that nobody disturbs ends with."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "CompiledSteps", ReadingSteps)
        assert start(prepared, workdir)
    return end_of(workdir)


BESIDE = ("checkpoints", "tensorboard", "programs")
CHANGES = ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.truncate")


class Photographer:
    """Copies a folder before Python code changes a file: what a process that is killed then leaves."""

    def __init__(self, folder: Path, album: Path) -> None:
        self.folder, self.album = folder, album
        self.copies: list[Path] = []
        self.is_on = True
        self._busy = threading.Lock()
        self._copying_thread: int | None = None
        self._last: dict[str, bytes] | None = None
        sys.addaudithook(self._look)

    def _look(self, event: str, _: object) -> None:
        # A copy changes files too. Other threads wait, so that no moment is missed.
        if not self.is_on or event not in CHANGES or self._copying_thread == threading.get_ident():
            return
        with self._busy:
            self._copying_thread = threading.get_ident()
            try:
                self._copy()
            finally:
                self._copying_thread = None

    def _copy(self) -> None:
        # The commit file is read first, because tensorstore may go on writing beside it.
        paths = sorted(self.folder.rglob("*"), key=lambda path: path.name != COMMIT_FILE)
        content = {}
        for path in paths:
            try:
                content[str(path.relative_to(self.folder))] = path.read_bytes()
            except (FileNotFoundError, IsADirectoryError):
                continue
        content.pop(LOCK_NAME, None)
        if content in ({}, self._last):
            return
        self._last = content
        copy = self.album / f"{len(self.copies):03}"
        for name, data in content.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(data)
        (copy / LOCK_NAME).write_text("process 7 on this machine, which is gone")
        self.copies.append(copy)


def moment_of(copy: Path) -> tuple[int, str]:
    """Returns the step of the last save in a copy, and how far it had come."""
    folders = copy / "checkpoints"
    steps = sorted(int(path.name) for path in folders.iterdir()) if folders.is_dir() else []
    if not steps:
        return 0, "before the first save"
    names = {path.name for path in files_of(folders / str(steps[-1]))}
    if COMMIT_FILE not in names:
        written = "manifest is written" if "manifest.json" in names else "arrays are being written"
        return steps[-1], written
    return steps[-1], "an old one is being removed" if len(steps) > 2 else "it is committed"


MOMENTS = [
    (0, "before the first save"),
    *((2, text) for text in ("arrays are being written", "manifest is written", "it is committed")),
    *((4, text) for text in ("arrays are being written", "manifest is written", "it is committed")),
    *((6, text) for text in ("arrays are being written", "manifest is written")),
    *((6, text) for text in ("an old one is being removed", "it is committed")),
]


@pytest.mark.parametrize("each", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_while_it_changes_a_file_ends_as_an_undisturbed_one(
    prepared, undisturbed, tmp_path, monkeypatch, each
):
    """At each change, or at the last change of each kind."""
    photographer = Photographer(tmp_path / "run", tmp_path / "album")
    assert start(prepared, tmp_path / "run")
    photographer.is_on = False
    copies = [(moment_of(copy), copy) for copy in photographer.copies]
    assert list(dict(copies)) == MOMENTS
    for moment, copy in copies if each else dict(copies).items():
        assert start(prepared, copy), moment
        end = end_of(copy)
        if moment == (6, "an old one is being removed"):
            # The run is finished, and a finished run is left as it is.
            assert set(end.pop("checkpoints")) >= {4, 6}
        assert end == {name: undisturbed[name] for name in end}, (copy.name, moment)


# If tensorboardX cannot write the rest of its file, it leaves the file to the garbage collector.
@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize(
    ("from_step", "largest_file"),
    [(0, 0), (0, 300), (0, 8000), (5, 0), (5, 300), (5, 700), (5, 1000)],
)
def test_a_full_disk_ends_a_run_with_a_message_and_the_same_command_goes_on(
    prepared, undisturbed, tmp_path, capsys, monkeypatch, from_step, largest_file
):
    """From a step on, writes of more than `largest_file` bytes fail."""
    workdir = tmp_path / "run"
    with contextlib.ExitStack() as disk:
        fill = functools.partial(disk.enter_context, full_disk(largest_file))
        if from_step:
            before_step[from_step] = fill
        else:
            fill()
        with pytest.raises((UserError, OSError)) as raised:
            start(prepared, workdir)
    message = user_message(raised.value)
    assert message is not None, raised.value
    if from_step:
        # Step 4 may have been saved in the background before.
        assert re.search(rf"the checkpoint of step [46] cannot be written to {workdir}", message)
        assert Checkpoints(workdir / "checkpoints").steps() in ([2], [2, 4])
    assert str(workdir) in message
    before_step.clear()
    assert start(prepared, workdir)
    assert end_of(workdir) == undisturbed


def trained_to_step_4(prepared, workdir: Path) -> None:
    """Leaves the checkpoints of the steps 2 and 4."""
    assert start(prepared, workdir, steps=4)
    assert Checkpoints(workdir / "checkpoints").steps() == [2, 4]


def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(
    prepared, undisturbed, tmp_path, capsys
):
    trained_to_step_4(prepared, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "4"
    data = max(files_of(checkpoint), key=lambda path: "/d/" in str(path) and path.stat().st_size)
    for file, damage in ((data, bytes(9)), (checkpoint / "manifest.json", None)):
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        damaged = tmp_path / "copy" / file.relative_to(tmp_path / "run")
        damaged.unlink()
        if damage is not None:
            damaged.write_bytes(damage)
        assert start(prepared, tmp_path / "copy")
        assert end_of(tmp_path / "copy") == undisturbed
        line = f"{tmp_path / 'copy'}/checkpoints/4: "
        assert any(
            text.startswith(line) and text.endswith(". Going on from step 2")
            for text in capsys.readouterr().err.splitlines()
        )
        shutil.rmtree(tmp_path / "copy")


def contents_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files_of(folder)}


def test_another_version_of_the_package_reads_what_it_can_and_leaves_the_rest_alone(
    prepared, undisturbed, tmp_path, monkeypatch
):
    workdir = tmp_path / "run"
    trained_to_step_4(prepared, workdir)
    before = contents_of(workdir)
    for module, constant, other, message in (
        (
            "checkpoint.manifest",
            "FORMAT",
            2,
            "its format is 1, written by gshard-nmt .* reads format 2",
        ),
        ("folder", "RUN_FORMAT", "gshard-nmt run 2", "has the format 'gshard-nmt run 1' of gshard"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"gshard_nmt.run.{module}.{constant}", other)
            with pytest.raises(UserError, match=message):
                start(prepared, workdir)
        after = contents_of(workdir)
        assert {path: after[path] for path in before} == before
    # The number of the version alone decides nothing.
    monkeypatch.setattr("gshard_nmt.__version__", "99.0")
    assert start(prepared, workdir)
    assert end_of(workdir) == undisturbed
