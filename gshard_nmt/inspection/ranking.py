"""Ranks the meshes of a config on a slice by formula, and writes the report of --advise."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gshard_nmt.errors import UserError
from gshard_nmt.inspection.candidates import device_orders, meshes, pipelines
from gshard_nmt.inspection.predict import Cost, Prediction, cost_of, predict
from gshard_nmt.inspection.products import Step, step_of
from gshard_nmt.inspection.program_cost import Inspection
from gshard_nmt.inspection.report import table
from gshard_nmt.quantities import seconds_text, size_text
from gshard_nmt.settings.config import as_gin
from gshard_nmt.settings.divides import problems
from gshard_nmt.spmd.chips import Gpu
from gshard_nmt.spmd.lowering import ArraySpec
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.topology import Topology

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config

Settings = Mapping[str, Mapping[str, Any]]
"""Changed settings: the part of a config, such as "model", -> the field -> its value."""

THE_CONFIGS_MESH = "the config's mesh"
_MOST_LINES = 10
_MOST_PARTS = 4
_MICROBATCHES_PER_STAGE = (1, 2, 4, 8)
_SMALL = 0.001
"""Differences below this share of a step are not told."""


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A mesh, and what the formula says about it."""

    name: str  # the file of configs/meshes that has its rules, or THE_CONFIGS_MESH
    mesh: Mesh  # the mesh, with the best order of its devices
    prediction: Prediction  # time and memory of a step
    # the other settings that it needs: those of a pipeline, by part of the config
    settings: Settings = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name and the shape, for instance "data_tensor x=32 y=4", and a pipeline's microbatches."""
        axes = zip(self.mesh.axes, self.mesh.shape, strict=True)
        sizes = [f"{axis}={size}" for axis, size in axes if size > 1]
        if "train" in self.settings:
            sizes.append(f"microbatches={self.settings['train']['microbatches']}")
        return " ".join([self.name, *sizes])

    def config(self, config: "Config") -> "Config":
        return config.replace(mesh=self.mesh, **self.settings)

    @property
    def memory(self) -> int:
        return self.prediction.cost.memory


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The meshes of a config on a slice."""

    tried: int  # number of meshes of all families
    divide: int  # number of those that divide the config's sizes
    # those that divide and fit, the fastest first; among equals, the smallest first
    candidates: Sequence[Candidate]
    own: Candidate | None  # the mesh of the config, if it has the slice's number of devices


def rank(
    config: "Config",
    weights: Mapping[str, ArraySpec],
    arrays: Mapping[str, ArraySpec],
    topology: Topology,
) -> Ranking:
    """Ranks all meshes that `meshes` lists, each with its best order of the devices.

    UserError: nothing is known about the links, no mesh divides, or none fits.
    """
    chip = topology.chip
    if chip is None:
        raise UserError(
            f"--advise: {topology.name} has no times, because nothing is known about its links. "
            "Name a TPU slice or GPUs with --topology, for instance v3:4x4."
        )
    rounds_operands = not isinstance(chip, Gpu)
    steps: dict[str, Step] = {}

    def cost_on(config: "Config") -> Cost:
        key = repr((config.model, config.train.microbatches))
        if key not in steps:
            steps[key] = step_of(config, weights, arrays, rounds_operands)
        return cost_of(steps[key], config.mesh, chip)

    tried, candidates = 0, []
    for name, mesh, settings in _ways(config, topology.num_devices):
        tried += 1
        # A mesh has the axes and rules of its file, and the rest of the config's mesh.
        mesh = dataclasses.replace(mesh, shared_update=config.mesh.shared_update)
        changed = config.replace(mesh=mesh, **settings)
        if any(problems(changed, arrays)):
            continue
        cost = cost_on(changed)
        orders = device_orders(topology, mesh.shape)
        if cost.memory > chip.hbm_bytes:  # any order will do
            orders = itertools.islice(orders, 1)
        placed = [dataclasses.replace(mesh, device_order=order) for order in dict.fromkeys(orders)]
        candidates.append(
            min(
                (Candidate(name, m, predict(cost, topology, m), settings) for m in placed),
                # Times that differ by rounding are equal. Then the usual order is better.
                key=lambda c: (
                    float(f"{c.prediction.step_seconds:.9g}"),
                    "T" in c.mesh.device_order,
                ),
            )
        )
    own = None
    if config.mesh.num_devices == topology.num_devices and not any(problems(config, arrays)):
        prediction = predict(cost_on(config), topology, config.mesh)
        own = Candidate(THE_CONFIGS_MESH, config.mesh, prediction)
    fitting = [c for c in candidates if c.memory <= chip.hbm_bytes]
    if not fitting:
        raise UserError(_none_fits(topology, tried, candidates))
    # Times that differ by less than a thousandth are equal: then the smaller memory is better.
    fitting.sort(key=lambda c: (float(f"{c.prediction.step_seconds:.3g}"), c.memory))
    return Ranking(tried, len(candidates), fitting, own)


def _ways(config: "Config", num_devices: int) -> Iterator[tuple[str, Mesh, Settings]]:
    """Yields all meshes for a config, with the settings that they need.

    Dense models, and those that are pipelines already, also get pipelines. A pipeline takes one to
    eight times as many microbatches as stages, or the number of the config.
    """
    model, own = config.model, config.train.microbatches
    is_pipeline = model.stack == "pipeline"
    for name, mesh in meshes(num_devices, bool(model.experts)):
        yield name, mesh, {"model": {"stack": "scan"}} if is_pipeline else {}
    if model.experts and not is_pipeline:
        return
    repeats = [model.repeats(stack) for stack in ("encoder", "decoder") if model.depth(stack)]
    for name, mesh in pipelines(num_devices):
        stages = mesh.shape[0]
        if any(number % stages for number in repeats):
            continue
        numbers = {stages * n for n in _MICROBATCHES_PER_STAGE} | ({own} if own > 1 else set())
        for number in sorted(numbers):
            stack = {"stack": "pipeline", "stages": stages}
            yield name, mesh, {"model": stack, "train": {"microbatches": number}}


def _none_fits(topology: Topology, tried: int, candidates: Sequence[Candidate]) -> str:
    if not candidates:
        return (
            f"--advise: none of {tried} meshes of {topology.num_devices} devices divides the sizes of "
            "this config. Change Data.rows, or choose another --topology."
        )
    smallest = min(candidates, key=lambda c: c.memory)
    assert topology.chip is not None
    return (
        f"--advise: none of {len(candidates)} meshes fits; the smallest, {smallest.title}, needs about "
        f"{size_text(smallest.memory)} and a device of {topology.name} has "
        f"{size_text(topology.chip.hbm_bytes)}. Choose more devices with --topology, or fewer "
        "Data.rows."
    )


def compiled_first(
    compiled: Sequence[tuple[Candidate, Inspection]],
) -> list[tuple[Candidate, Inspection]]:
    """Returns compiled meshes, those that fit before the others, the fastest first."""
    return sorted(
        compiled, key=lambda pair: (not pair[1].fits, pair[1].step_seconds or float("inf"))
    )


def report(
    ranking: Ranking,
    compiled: Sequence[tuple[Candidate, Inspection]],
    name: str,
    topology: Topology,
) -> str:
    """Returns the report for a terminal."""
    inspections = {candidate.title: inspection for candidate, inspection in compiled}
    others = [c for c in ranking.candidates if c.title not in inspections]
    candidates = [*(candidate for candidate, _ in compiled), *others]
    rows: list[tuple[str, ...]] = [("mesh", "predicted", "compiled", "memory", "compiled")]
    for number, candidate in enumerate(candidates[:_MOST_LINES], start=1):
        inspection = inspections.get(candidate.title)
        seconds, peak = None, "-"
        if inspection:
            seconds = inspection.step_seconds
            peak = size_text(inspection.memory.peak)
            peak += "" if inspection.fits else " (does not fit)"
        rows.append(
            (
                f"{number:2}. {candidate.title}",
                seconds_text(candidate.prediction.step_seconds),
                seconds_text(seconds) if seconds else "-",
                size_text(candidate.memory),
                peak,
            )
        )
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
            reasons = [why(candidate, ranking), *gin_lines(candidate), *inspection.does_not_fit[:1]]
            lines += ["", f"{number}. {candidate.title}", *(f"    {line}" for line in reasons)]
    return "\n".join(lines) + "\n"


def compiled_text(inspection: Inspection) -> str:
    """Returns step time and memory of a compiled mesh, for the progress on stderr."""
    memory = size_text(inspection.memory.peak)
    if not inspection.fits or inspection.step_seconds is None:
        return f"it does not fit: {memory} of memory"
    return f"a step takes {seconds_text(inspection.step_seconds)}, with {memory} of memory"


def why(candidate: Candidate, ranking: Ranking) -> str:
    """Returns a sentence that compares a mesh with the mesh of the config, or with another mesh."""
    others = (c for c in ranking.candidates if c.title != candidate.title)
    rival = ranking.own or next(others, None)
    if rival is None:
        return "It is the only mesh that divides and fits."
    ours, theirs = candidate.prediction, rival.prediction
    differences = {
        part: ours.seconds.get(part, 0.0) - theirs.seconds.get(part, 0.0)
        for part in {**ours.seconds, **theirs.seconds}
    }
    largest = sorted(differences, key=lambda part: -abs(differences[part]))
    parts = [
        f"{seconds_text(abs(differences[part]))} {'less' if differences[part] < 0 else 'more'} for {part}"
        for part in largest[:_MOST_PARTS]
        if abs(differences[part]) >= _SMALL * ours.step_seconds
    ]
    change = ours.step_seconds / theirs.step_seconds - 1
    length = f"{abs(change):.1%} {'shorter' if change < 0 else 'longer'} than"
    if abs(change) < _SMALL:
        length = "as long as"
    memory = f"{size_text(candidate.memory)} of memory instead of {size_text(rival.memory)}"
    because = f" ({', '.join(parts)})" if parts else ""
    return f"By formula, its step is {length} with {rival.title}{because}. It needs {memory}."


def gin_lines(candidate: Candidate) -> list[str]:
    settings = [
        f"{part.capitalize()}.{field} = {value!r}"
        for part, fields in candidate.settings.items()
        for field, value in fields.items()
    ]
    return as_gin([candidate.mesh]).splitlines()[2:-2] + settings


def ranking_as_json(ranking: Ranking) -> list[dict[str, Any]]:
    candidates = [*ranking.candidates, *([ranking.own] if ranking.own else [])]
    return [
        {
            "name": candidate.name,
            "mesh": dict(zip(candidate.mesh.axes, candidate.mesh.shape, strict=True)),
            "device_order": candidate.mesh.device_order,
            "predicted_step_seconds": candidate.prediction.step_seconds,
            "seconds": dict(candidate.prediction.seconds),
            "flops_per_device": candidate.prediction.cost.flops,
            "memory_bytes": candidate.memory,
            "gin": gin_lines(candidate),
        }
        for candidate in candidates
    ]
