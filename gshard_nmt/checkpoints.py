"""gshard-checkpoint: lists, verifies, compares and averages the checkpoints of a run.

It needs no accelerator, and the mesh of the run does not matter. It reads one tensor after the other.
"""

import contextlib
import datetime
import functools
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gshard_nmt import files, outputs
from gshard_nmt.errors import TryAgain, UserError
from gshard_nmt.quantities import size_text
from gshard_nmt.reading import UnreadableError, UnsoundError, failure
from gshard_nmt.run.checkpoint.checkpoint import Checkpoints, usable
from gshard_nmt.run.checkpoint.checkpoint_writer import CheckpointWriter
from gshard_nmt.run.checkpoint.checksums import slice_name
from gshard_nmt.run.checkpoint.manifest import Manifest, Tensor
from gshard_nmt.run.checkpoint.retention import Retention
from gshard_nmt.run.folder import RunFolder
from gshard_nmt.settings.values import read_run_config

Item = TypeVar("Item")

_COPIED = ("config.gin", "data.json", "source.model", "target.model", "budget.json")
"""The files of a run folder that decoding and evaluation need."""


def list_checkpoints(workdir: Path, as_json: bool = False) -> None:
    checkpoints = _open(workdir)
    reasons, metric = checkpoints.kept(), checkpoints.retention.metric
    rows = [_row(checkpoints, step, reasons.get(step, [])) for step in checkpoints.steps()]
    if as_json:
        _print_json(rows)
        return
    cells = []
    for row in rows:
        if "problem" in row:
            cells.append((str(row["step"]), "", "", "", row["problem"]))
            continue
        score = row["scores"].get(metric)
        kept_as = ", ".join(row["kept"]) or "to be removed by the next save"
        if row["average_of"]:
            kept_as += f"; average of {', '.join(row['average_of'])}"
        kept_as += "; with Train.ema" * ("ema" in row["groups"])
        size, shown = size_text(row["bytes"]), "" if score is None else f"{score:.3f}"
        cells.append((str(row["step"]), row["date"], size, shown, kept_as))
    columns = ("step", "date", "size", metric, "kept as")
    _print_table(f"checkpoints of {workdir}", columns, cells)


def _row(checkpoints: Checkpoints, step: int, reasons: Sequence[str]) -> dict[str, Any]:
    try:
        manifest = checkpoints.manifest(step)
    except UnsoundError as problem:
        return {"step": step, "problem": str(problem)}
    return {
        "step": step,
        "date": datetime.datetime.fromtimestamp(manifest.saved_at).isoformat(" ", "seconds"),
        "bytes": manifest.nbytes,
        "scores": dict(manifest.scores.values),
        "kept": list(reasons),
        "groups": list(manifest.tensors),
        "average_of": list(manifest.average_of),
        "version": manifest.version,
    }


def verify(workdir: Path, step: int | None = None, as_json: bool = False) -> None:
    """Reads back every tensor of the checkpoints of a run; raises an error that names what is damaged."""
    checkpoints = _open(workdir)
    steps = [_existing(checkpoints, step)] if step is not None else checkpoints.steps()
    results: list[dict[str, Any]] = []
    damaged: list[str] = []
    unread: UserError | TryAgain | None = None
    for number in steps:
        folder = checkpoints.folder / str(number)
        problems: list[str] = []
        tensors = 0
        try:
            tensors = _find_problems(checkpoints, number, workdir, problems)
            outcome = "damaged" if problems else "sound"
            damaged += [f"{folder}: {problem}" for problem in problems]
        except UnreadableError as problem:
            outcome, problems, unread = "cannot be read", [str(problem)], failure(folder, problem)
        results.append({"step": number, "tensors": tensors, "problems": problems})
        if not as_json:
            _say(f"step {number}: {tensors} tensors, {outcome}")
    if as_json:
        _print_json(results)
    if damaged:
        folders = {line.partition(": ")[0] for line in damaged}
        raise UserError(
            f"{len(folders)} of {len(results)} checkpoints cannot be used:\n  "
            + "\n  ".join(damaged)
            + "\nTraining goes on from the newest sound checkpoint; decoding uses the best sound one."
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
    names = list(_tensors(manifest))
    for group, name in _shown(names, f"verifying step {step}"):
        with _noted(problems):
            checkpoints.read(manifest, group, name)
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


class Difference(NamedTuple):
    """How a tensor of two checkpoints differs: why it cannot be compared, or the largest difference.

    `relative` is the norm of the difference, divided by the norm of the first tensor; None if that is 0.
    `slices` are the experts and repeats that differ.
    """

    tensor: str
    reason: str = ""
    largest: float = 0.0
    relative: float | None = 0.0
    slices: Sequence[str] = ()


def diff(
    first: tuple[Path, int | None], second: tuple[Path, int | None], as_json: bool = False
) -> None:
    """Prints which tensors of two checkpoints differ, and by how much, the largest relative norm first.

    Only tensors with different checksums are read. A step of None is the last checkpoint.
    """
    left, right = _chosen(*first), _chosen(*second)
    tensors, others = _tensors(left.manifest), _tensors(right.manifest)
    differences = [
        Difference("/".join(key), f"only in {(left if key in tensors else right).label}")
        for key in sorted(tensors.keys() ^ others.keys())
    ]
    common = sorted(tensors.keys() & others.keys())
    changed = [key for key in common if not _equal(tensors[key], others[key])]
    differences += [_compared(key, left, right) for key in _shown(changed, "comparing")]
    differences.sort(
        key=lambda row: (
            not row.reason,
            -(math.inf if row.relative is None else row.relative),
            row.tensor,
        )
    )
    equal = len(common) - len(changed)
    if as_json:
        _print_json({"equal": equal, "different": [row._asdict() for row in differences]})
        return
    if differences:
        columns = ("tensor", "largest difference", "relative norm", "experts and repeats")
        cells = [_cells(row) for row in differences]
        _print_table(f"{left.label} and {right.label}", columns, cells)
    _say(f"equal to the bit: {equal} of {equal + len(differences)} tensors")


class _Chosen(NamedTuple):
    """A checkpoint of a run. Its label is the run folder and the step."""

    checkpoints: Checkpoints
    manifest: Manifest
    label: str

    def read(self, group: str, name: str) -> np.ndarray:
        with usable(self.label, _CHOOSE):
            array = self.checkpoints.read(self.manifest, group, name)
        return array.astype(np.float64)


_CHOOSE = "; choose a sound checkpoint."


def _chosen(workdir: Path, step: int | None) -> _Chosen:
    checkpoints = _open(workdir)
    step = _existing(checkpoints, step)
    label = f"{workdir}/checkpoints/{step}"
    with usable(label, _CHOOSE):
        return _Chosen(checkpoints, checkpoints.manifest(step), label)


def _compared(key: tuple[str, str], left: _Chosen, right: _Chosen) -> Difference:
    name = "/".join(key)
    tensor, against = (chosen.manifest.tensors[key[0]][key[1]] for chosen in (left, right))
    if (tensor.shape, tensor.dtype) != (against.shape, against.dtype):
        shapes = [f"{t.dtype}{list(t.shape)}" for t in (tensor, against)]
        return Difference(name, f"{shapes[0]} and {shapes[1]}")
    before = left.read(*key)
    change = right.read(*key) - before
    norm = float(np.linalg.norm(before))
    slices: list[str] = []
    if tensor.sums.ndim and tensor.letters == against.letters:
        indices = np.argwhere(tensor.sums != against.sums).tolist()
        slices = [slice_name(tensor.letters, index) for index in indices]
    relative = float(np.linalg.norm(change)) / norm if norm else None
    return Difference(name, "", float(np.abs(change).max(initial=0)), relative, slices)


def _cells(row: Difference) -> tuple[str, str, str, str]:
    if row.reason:
        return row.tensor, "", "", row.reason
    norm = "the first is 0" if row.relative is None else f"{row.relative:.3g}"
    more = f" and {len(row.slices) - 4} more" if len(row.slices) > 4 else ""
    return row.tensor, f"{row.largest:.3g}", norm, "; ".join(row.slices[:4]) + more


def average(workdir: Path, steps: Sequence[int], last: int, out: Path) -> None:
    """Makes a run folder whose weights are the mean of several checkpoints, `steps` or the `last` ones.

    A checkpoint that has a moving average (Train.ema) counts with it.
    """
    outputs.check_folder("--out", out, replaced=True)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty; give a new folder.")
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
    with outputs.new_folder(out) as run:
        for name in _COPIED:
            if (workdir / name).is_file():
                files.write(run / name, (workdir / name).read_bytes())
        letters = {"parameters": {name: tensor.letters for name, tensor in weights.items()}}
        writer = CheckpointWriter(run / "checkpoints", identity=newest.files)
        with contextlib.closing(writer):
            groups = {"parameters": means}
            writer.save(newest.step, groups, letters, newest.facts, average_of=labels)
    _say(f"{out}: the mean of {', '.join(labels)}; decode with gshard-decode --workdir {out}")


def _open(workdir: Path) -> Checkpoints:
    run = RunFolder(workdir)
    return Checkpoints(run.checkpoints, Retention.of(read_run_config(run.config).train))


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


def _tensors(manifest: Manifest) -> dict[tuple[str, str], Tensor]:
    return {
        (group, name): table[name]
        for group, table in manifest.tensors.items()
        for name in sorted(table)
    }


def _equal(tensor: Tensor, other: Tensor) -> bool:
    described = [(t.shape, t.dtype, t.letters) for t in (tensor, other)]
    return described[0] == described[1] and bool((tensor.sums == other.sums).all())


def _shown(items: Sequence[Item], title: str) -> Iterator[Item]:
    console = Console(stderr=True, highlight=False, markup=False)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        yield from progress.track(items, description=title)


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title)
    for name in columns:
        table.add_column(
            name, justify="right" if name in ("step", "size") else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)


def _say(text: str) -> None:
    Console(highlight=False, markup=False).print(text, markup=False, soft_wrap=True)


def _print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    _say(json.dumps(value, indent=1))
