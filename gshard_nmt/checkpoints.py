"""gshard-checkpoint: lists, verifies, compares and averages the checkpoints of a run.

It needs no accelerator, and the mesh of the run does not matter. It reads one tensor after the other.
"""

import contextlib
import datetime
import functools
import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from rich.progress import Progress

from gshard_nmt import files, outputs
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.quantities import size_text
from gshard_nmt.reading import UnreadableError, UnsoundError, failure
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, Retention, flat, usable
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.manifest import Manifest, Tensor
from gshard_nmt.run.folder import IMPORTED, RunFolder
from gshard_nmt.settings.values import read_run_config
from gshard_nmt.terminal import Terminal, table

Item = TypeVar("Item")

_COPIED = ("config.gin", "data.json", "source.model", "target.model", "budget.json")
"""The files of a run folder that decoding and evaluation need."""

_CHOOSE = "; choose a sound checkpoint."


def list_checkpoints(workdir: Path) -> None:
    checkpoints = _open(workdir)
    reasons, metric = checkpoints.kept(), checkpoints.retention.metric
    cells = []
    for step in checkpoints.steps():
        try:
            manifest = checkpoints.manifest(step)
        except UnsoundError as problem:
            cells.append((str(step), "", "", "", str(problem)))
            continue
        date = datetime.datetime.fromtimestamp(manifest.saved_at).isoformat(" ", "seconds")
        kept_as = ", ".join(reasons.get(step, ())) or "to be removed by the next save"
        if manifest.average_of:
            kept_as += f"; average of {', '.join(manifest.average_of)}"
        kept_as += "; with Train.ema" * manifest.has_average
        score = manifest.scores.values.get(metric)
        shown = "" if score is None else f"{score:.3f}"
        cells.append((str(step), date, size_text(manifest.nbytes), shown, kept_as))
    columns = ("step", "date", "size", metric, "kept as")
    Terminal().print(table(f"checkpoints of {workdir}", columns, cells, left=(1, 3, 4)))


def verify(workdir: Path, step: int | None = None) -> None:
    """Reads back every tensor of the checkpoints of a run; raises an error that names what is damaged."""
    checkpoints = _open(workdir)
    chosen = _existing(checkpoints, step)
    steps = [chosen] if step is not None else checkpoints.steps()
    damaged: dict[Path, list[str]] = {}
    unread: UserError | TryAgain | None = None
    for number in steps:
        folder = checkpoints.folder / str(number)
        problems: list[str] = []
        tensors = 0
        try:
            tensors = _find_problems(checkpoints, number, workdir, problems)
            outcome = "damaged" if problems else "sound"
        except UnreadableError as problem:
            if number not in checkpoints.steps():
                Terminal().print(f"step {number}: its run has removed it meanwhile")
                continue
            outcome, unread = "cannot be read", failure(folder, problem)
        if problems:
            damaged[folder] = problems
        Terminal().print(f"step {number}: {tensors} tensors, {outcome}")
    if damaged:
        lines = [f"\n  {folder}: {text}" for folder, texts in damaged.items() for text in texts]
        raise UserError(
            f"{len(damaged)} of {len(steps)} checkpoints cannot be used:{''.join(lines)}\nTraining goes "
            "on from the newest sound checkpoint; decoding uses the best sound one."
        )
    if unread is not None:
        raise unread


def _find_problems(checkpoints: Checkpoints, step: int, workdir: Path, problems: list[str]) -> int:
    """Adds what is damaged in a checkpoint to `problems`. Returns the number of its tensors."""
    with _noted(problems):
        manifest = checkpoints.manifest(step)
    if problems:
        return 0
    for name, digest in manifest.files.items():
        file = workdir / name
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            problems.append(f"it was made with another {name}")
    names = list(flat(manifest.tensors))
    for name in _shown(names, f"verifying step {step}"):
        with _noted(problems):
            checkpoints.read(manifest, *name.split("/", 1))
    return len(names)


@contextlib.contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Adds an UnsoundError of the block to `problems`. UnreadableError is no damage, and is raised."""
    try:
        yield
    except UnreadableError:
        raise
    except UnsoundError as problem:
        problems.append(str(problem))


class _Chosen(NamedTuple):
    """A checkpoint of a run. Its label is the run folder and the step."""

    checkpoints: Checkpoints
    manifest: Manifest
    label: str

    def read(self, group: str, name: str) -> np.ndarray:
        with usable(self.label, _CHOOSE):
            array = self.checkpoints.read(self.manifest, group, name)
        return array.astype(np.float64)


def _chosen(workdir: Path, step: int | None) -> _Chosen:
    checkpoints = _open(workdir)
    step = _existing(checkpoints, step)
    label = f"{workdir}/checkpoints/{step}"
    with usable(label, _CHOOSE):
        return _Chosen(checkpoints, checkpoints.manifest(step), label)


def diff(first: tuple[Path, int | None], second: tuple[Path, int | None]) -> None:
    """Prints which tensors of two checkpoints differ, and by how much, the largest relative norm first.

    Only tensors with different checksums are read. A step of None is the last checkpoint.
    """
    left, right = _chosen(*first), _chosen(*second)
    tensors, others = flat(left.manifest.tensors), flat(right.manifest.tensors)
    rows: list[tuple[float, tuple[str, ...]]] = [
        (math.inf, (name, "", "", f"only in {(left if name in tensors else right).label}"))
        for name in sorted(tensors.keys() ^ others.keys())
    ]
    common = sorted(tensors.keys() & others.keys())
    changed = [name for name in common if _facts(tensors[name]) != _facts(others[name])]
    rows += [_compared(name, left, right) for name in _shown(changed, "comparing")]
    rows.sort(key=lambda row: -row[0])
    if rows:
        columns = ("tensor", "largest difference", "relative norm", "experts and repeats")
        cells = [cells for _, cells in rows]
        Terminal().print(table(f"{left.label} and {right.label}", columns, cells, left=range(4)))
    equal = len(common) - len(changed)
    Terminal().print(f"equal to the bit: {equal} of {equal + len(rows)} tensors")


def _facts(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.letters, tensor.sums.tolist()


def _compared(name: str, left: _Chosen, right: _Chosen) -> tuple[float, tuple[str, ...]]:
    """Returns the norm of the difference, divided by the norm of the first tensor, and a table row."""
    group, _, rest = name.partition("/")
    tensor, against = (chosen.manifest.tensors[group][rest] for chosen in (left, right))
    if (tensor.shape, tensor.dtype) != (against.shape, against.dtype):
        shapes = [f"{t.dtype}{list(t.shape)}" for t in (tensor, against)]
        return math.inf, (name, "", "", f"{shapes[0]} and {shapes[1]}")
    before = left.read(group, rest)
    change = right.read(group, rest) - before
    norm = float(np.linalg.norm(before))
    relative = float(np.linalg.norm(change)) / norm if norm else math.inf
    has_slices = tensor.sums.ndim and tensor.letters == against.letters
    slices = tensor.differing(against.sums) if has_slices else ""
    largest = f"{np.abs(change).max(initial=0):.3g}"
    shown = f"{relative:.3g}" if norm else "the first is 0"
    return relative, (name, largest, shown, slices)


def average(workdir: Path, steps: Sequence[int], last: int, out: Path) -> None:
    """Makes a run folder whose weights are the mean of several checkpoints, `steps` or the `last` ones.

    A checkpoint that has a moving average (Train.ema) counts with it.
    """
    outputs.check_new("--out", out)
    os.environ["JAX_PLATFORMS"] = "cpu"  # no accelerator is needed
    checkpoints = _open(workdir)
    existing = checkpoints.steps()
    if not steps and len(existing) < last:
        raise UserError(
            f"--last is {last}, and {checkpoints.folder} has {len(existing)} checkpoints; give a smaller "
            "number, or train with a larger Train.keep_last."
        )
    chosen = [_chosen(workdir, step) for step in sorted(set(steps)) or existing[-last:]]
    newest = chosen[-1].manifest
    weights = newest.tensors["parameters"]
    for part in chosen:
        try:
            part.manifest.check_files(newest.files)
            part.manifest.check_arrays(part.manifest.group_to_decode, weights)
        except UnsoundError as problem:
            raise UserError(f"{part.label}: {problem}; choose checkpoints of one run.") from None
    means: dict[str, Any] = {}
    for name in _shown(list(weights), f"averaging {len(chosen)} checkpoints"):
        parts = (part.read(part.manifest.group_to_decode, name) for part in chosen)
        total = functools.reduce(np.add, parts)
        means[name] = (total / len(chosen)).astype(weights[name].dtype)
    labels = [part.label + " (Train.ema)" * part.manifest.has_average for part in chosen]
    with outputs.new_folder(out, "--out") as run:
        copied = [workdir / name for name in _COPIED]
        if (workdir / IMPORTED).is_dir():
            (run / IMPORTED).mkdir()
            copied += (workdir / IMPORTED).iterdir()
        for file in copied:
            if file.is_file():
                files.write(run / file.relative_to(workdir), file.read_bytes())
        letters = {"parameters": {name: tensor.letters for name, tensor in weights.items()}}
        writer = CheckpointWriter(run / "checkpoints", identity=newest.files)
        with contextlib.closing(writer):
            groups = {"parameters": means}
            writer.save(newest.step, groups, letters, newest.facts, average_of=labels)
    Terminal().print(
        f"{out}: the mean of {', '.join(labels)}; decode with gshard-decode --workdir {out}"
    )


def _open(workdir: Path) -> Checkpoints:
    run = RunFolder(workdir)
    train = read_run_config(run.config).train
    # Without the identity of the run: checkpoints of others are listed too.
    return Checkpoints(run.checkpoints, Retention.of(train))


def _existing(checkpoints: Checkpoints, step: int | None) -> int:
    steps = checkpoints.steps()
    if not steps:
        raise UserError(
            f"{checkpoints.folder} has no checkpoint; give the --workdir of a run that has saved one."
        )
    if step is None:
        return steps[-1]
    if step not in steps:
        listed = ", ".join(map(str, steps))
        raise UserError(
            f"{checkpoints.folder} has no checkpoint of step {step}; it has {listed}. Give one of these."
        )
    return step


def _shown(items: Sequence[Item], title: str) -> Iterator[Item]:
    console = Terminal(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        yield from progress.track(items, description=title)
