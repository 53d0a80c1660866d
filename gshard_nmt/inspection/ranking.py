"""Ranks the meshes of a config on a slice by formula, and writes the report of --advise.

A mesh is the rules of a file of configs/meshes, a shape, and an order of the devices.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gshard_nmt.errors import UserError
from gshard_nmt.inspection.links import counted
from gshard_nmt.inspection.predict import Prediction, cost_of, predict
from gshard_nmt.inspection.products import step_of
from gshard_nmt.inspection.program_cost import Inspection
from gshard_nmt.inspection.report import table
from gshard_nmt.quantities import seconds_text, size_text
from gshard_nmt.settings.config import as_gin, configs_folder
from gshard_nmt.settings.divides import problems
from gshard_nmt.spmd.lowering import ArraySpecs
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Gpu, Topology

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config

FOR_ALL = ("expert", "zero", "data_expert_tensor")
FOR_EXPERTS = ("data_expert", "hybrid")
FOR_DENSE = ("data_tensor_attempt1", "data_tensor_attempt2", "data_tensor")
"""Files of configs/meshes, whose axes and rules are good for meshes of many shapes."""

THE_CONFIGS_MESH = "the config's mesh"
_MOST_LINES = 10
_MOST_PARTS = 4
_SMALL = 0.001
"""Differences below this share of a step are not told."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mesh, and what the formula says about it."""

    name: str  # the file of configs/meshes that has its rules, or THE_CONFIGS_MESH
    mesh: Mesh  # the mesh, with the best order of its devices
    prediction: Prediction  # time and memory of a step

    @property
    def title(self) -> str:
        """The name and the shape, for instance "data_tensor x=32 y=4"."""
        axes = (f"{axis}={size}" for axis, size in self.mesh.sizes.items() if size > 1)
        return " ".join([self.name, *axes])

    def seconds(self, digits: int) -> float:
        """Returns the time of a step, rounded to some digits that matter."""
        return float(f"{self.prediction.step_seconds:.{digits}g}")

    @property
    def gin_lines(self) -> list[str]:
        return as_gin([self.mesh]).splitlines()[2:-2]


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The meshes of a config on a slice."""

    tried: int  # number of meshes of all families
    divide: int  # number of those that divide the config's sizes
    # those that divide and fit, the fastest first; among equals, the smallest first
    candidates: Sequence[Candidate]
    own: Candidate | None  # the mesh of the config, if it has the slice's number of devices


def rank(config: "Config", arrays: ArraySpecs, topology: Topology) -> Ranking:
    """Ranks all meshes that `meshes` lists, each with its best order of the devices.

    UserError: nothing is known about the links, no mesh divides, or none fits.
    """
    chip, devices = topology.chip, topology.num_devices
    if chip is None:
        raise UserError(
            f"--advise: {topology.name} has no times, because nothing is known about its links. "
            "Name a TPU slice or GPUs with --topology, for instance v3:4x4."
        )
    if devices == 1:
        raise UserError(
            f"--advise: {topology.name} has one device, so there is no mesh to choose. Name more devices."
        )
    step = step_of(config, arrays, rounds_operands=not isinstance(chip, Gpu))
    # A mesh has the axes and rules of its file, and the rest of the config's mesh.
    shared_update = config.mesh.shared_update
    tried = [
        (name, dataclasses.replace(mesh, shared_update=shared_update))
        for name, mesh in meshes(devices, bool(config.model.experts))
    ]
    candidates = []
    for name, mesh in tried:
        if any(problems(config.replace(mesh=mesh), arrays)):
            continue
        cost = cost_of(step, mesh, chip)
        orders = device_orders(topology, mesh.shape)
        if cost.memory > chip.hbm_bytes:  # any order will do
            orders = itertools.islice(orders, 1)
        placed = [dataclasses.replace(mesh, device_order=order) for order in dict.fromkeys(orders)]
        ordered = [Candidate(name, m, predict(cost, topology, m)) for m in placed]
        # Times that differ by rounding are equal. Then the usual order is better.
        candidates.append(min(ordered, key=lambda c: (c.seconds(9), "T" in c.mesh.device_order)))
    own = None
    if config.mesh.num_devices == devices and not any(problems(config, arrays)):
        prediction = predict(cost_of(step, config.mesh, chip), topology, config.mesh)
        own = Candidate(THE_CONFIGS_MESH, config.mesh, prediction)
    if not candidates:
        raise UserError(
            f"--advise: none of {len(tried)} meshes of {devices} devices divides the sizes of this "
            "config. Change Data.rows, or choose another --topology."
        )
    fitting = [c for c in candidates if c.prediction.cost.memory <= chip.hbm_bytes]
    if not fitting:
        smallest = min(candidates, key=lambda c: c.prediction.cost.memory)
        raise UserError(
            f"--advise: none of {len(candidates)} meshes fits; the smallest, {smallest.title}, needs "
            f"about {size_text(smallest.prediction.cost.memory)} and a device of {topology.name} has "
            f"{size_text(chip.hbm_bytes)}. Choose more devices with --topology, or fewer Data.rows."
        )
    # Times that differ by less than a thousandth are equal: then the smaller memory is better.
    fitting.sort(key=lambda c: (c.seconds(3), c.prediction.cost.memory))
    return Ranking(len(tried), len(candidates), fitting, own)


@functools.cache
def family(name: str) -> Mesh:
    """Returns the mesh of a file of configs/meshes, with two devices along each axis."""
    from gshard_nmt.settings.gin_reader import load_config

    file = configs_folder() / "meshes" / f"{name}.gin"
    sizes = re.findall(r"(?m)^(\w+) = %gin.REQUIRED", file.read_text(encoding="utf-8"))
    return load_config(str(file), [f"{size} = 2" for size in sizes]).mesh


def meshes(num_devices: int, has_experts: bool) -> Iterator[tuple[str, Mesh]]:
    """Yields every mesh that suits a model, and the name of its file.

    A mesh with an axis of size 1 is a mesh of another file and is left out. The only exception is
    the axis `expert` of a dense model, which always has size 1.
    """
    for name in (*FOR_ALL, *(FOR_EXPERTS if has_experts else FOR_DENSE)):
        mesh = family(name)
        split = [axis for axis in mesh.axes if has_experts or axis != "expert"]
        for sizes in factorizations(num_devices, len(split)):
            size_of = dict(zip(split, sizes, strict=True))
            shape = tuple(size_of.get(axis, 1) for axis in mesh.axes)
            yield name, dataclasses.replace(mesh, shape=shape)


def factorizations(n: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yields all ways to write n as an ordered product of `count` factors above 1."""
    divisors = [d for d in range(2, n + 1) if n % d == 0]
    for factors in itertools.product(divisors, repeat=count):
        if math.prod(factors) == n:
            yield factors


def device_orders(topology: Topology, shape: Sequence[int]) -> Iterator[str]:
    """Yields values of Mesh.device_order, in XLA's notation, that put each mesh axis on a box of chips.

    Every axis of the torus, and the cores of a chip, are divided among the mesh axes in all ways that
    give their sizes. In one order, the same mesh axis has neighboring chips on all axes of the torus.
    """
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    for shares in _shares([shape[axis] for axis in axes], counted(topology)):
        # The last axis of `outside_in` has neighboring devices.
        for outside_in in itertools.permutations(range(len(axes))):
            grid = [(a, share[a]) for share in shares for a in outside_in if share[a] > 1]
            order = sorted(range(len(grid)), key=lambda place: grid[place][0])
            if order == sorted(order):
                yield f"[{math.prod(shape)}]"
            else:
                sizes = ",".join(str(size) for _, size in grid)
                yield f"[{sizes}]T({','.join(map(str, order))})"


def _shares(shape: Sequence[int], machine: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yields the share that each mesh axis has of each axis of a machine; they multiply to its size."""
    if not machine:
        yield ()
        return
    choices = ([n for n in range(1, size + 1) if size % n == 0] for size in shape)
    for share in itertools.product(*choices):
        if math.prod(share) == machine[0]:
            left = [size // n for size, n in zip(shape, share, strict=True)]
            for rest in _shares(left, machine[1:]):
                yield (share, *rest)


Compiled = Sequence[tuple[Candidate, Inspection]]
"""Candidates that were compiled, with the figures of their programs."""


def compiled_first(compiled: Compiled) -> list[tuple[Candidate, Inspection]]:
    """Returns compiled meshes, those that fit before the others, the fastest first."""
    return sorted(compiled, key=lambda p: (not p[1].fits, p[1].step_seconds or float("inf")))


def report(ranking: Ranking, compiled: Compiled, name: str, topology: Topology) -> str:
    """Returns the report for a terminal."""
    inspections = {candidate.title: inspection for candidate, inspection in compiled}
    others = [c for c in ranking.candidates if c.title not in inspections]
    candidates = [*(candidate for candidate, _ in compiled), *others]
    rows: list[tuple[str, ...]] = [("mesh", "predicted", "compiled", "memory", "compiled")]
    for number, candidate in enumerate(candidates[:_MOST_LINES], start=1):
        inspection = inspections.get(candidate.title)
        seconds, peak = "-", "-"
        if inspection:
            seconds = seconds_text(inspection.step_seconds) if inspection.step_seconds else "-"
            peak = size_text(inspection.memory.peak)
            peak += "" if inspection.fits else " (does not fit)"
        predicted, memory = candidate.prediction.step_seconds, candidate.prediction.cost.memory
        title = f"{number:2}. {candidate.title}"
        rows.append((title, seconds_text(predicted), seconds, size_text(memory), peak))
    lines = [
        f"ADVICE for {name} on {topology.name}, {topology.num_devices:,} devices: of {ranking.tried} "
        f"meshes {ranking.divide} divide and {len(ranking.candidates)} fit by formula; "
        f"{len(compiled)} were compiled",
        table(rows),
    ]
    if rest := candidates[_MOST_LINES:]:
        lines.append(f"    and {len(rest)} more (see --json)")
    for number, (candidate, inspection) in enumerate(compiled, start=1):
        if candidate.name != THE_CONFIGS_MESH:
            reasons = [*why(candidate, ranking), *candidate.gin_lines, *inspection.does_not_fit[:1]]
            lines += ["", f"{number}. {candidate.title}", *(f"    {line}" for line in reasons)]
    return "\n".join(lines) + "\n"


def why(candidate: Candidate, ranking: Ranking) -> list[str]:
    """Returns a sentence that compares a mesh with the mesh of the config, or with the next one."""
    others = (c for c in ranking.candidates if c.title != candidate.title)
    rival = ranking.own or next(others, None)
    if rival is None:
        return []
    ours, theirs = candidate.prediction, rival.prediction
    step = ours.step_seconds
    change = step / theirs.step_seconds - 1
    length = f"{abs(change):.1%} {'shorter' if change < 0 else 'longer'} than"
    if abs(change) < _SMALL:
        length = "as long as"
    differences = {
        part: ours.seconds.get(part, 0.0) - theirs.seconds.get(part, 0.0)
        for part in {**ours.seconds, **theirs.seconds}
    }
    parts = [
        f"{seconds_text(abs(change))} {'less' if change < 0 else 'more'} for {part}"
        for part, change in sorted(differences.items(), key=lambda item: -abs(item[1]))
        if abs(change) >= _SMALL * step
    ]
    because = f" ({', '.join(parts[:_MOST_PARTS])})" if parts else ""
    return [f"By formula, its step is {length} with {rival.title}{because}."]


def ranking_as_json(ranking: Ranking) -> list[dict[str, Any]]:
    return [
        {
            "name": candidate.name,
            "mesh": candidate.mesh.sizes,
            "device_order": candidate.mesh.device_order,
            "predicted_step_seconds": candidate.prediction.step_seconds,
            "seconds": dict(candidate.prediction.seconds),
            "flops_per_device": candidate.prediction.cost.flops,
            "memory_bytes": candidate.prediction.cost.memory,
            "gin": candidate.gin_lines,
        }
        for candidate in [*ranking.candidates, *([ranking.own] if ranking.own else [])]
    ]
