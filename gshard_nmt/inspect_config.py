"""gshard-inspect: shows what a config costs on a pod before the pod is rented.

The program lowers the real training step, and the real compiler compiles it for a topology that need
not be there. The memory, collectives and arithmetic are then read from the compiled program. Nothing is
allocated on a device, and nothing runs.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files
from gshard_nmt.errors import UserError
from gshard_nmt.inspection import memory, program_cost, ranking, report
from gshard_nmt.inspection.program_cost import Compilation, Counts, Inspection, as_json
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import (
    parameter_table,
    state_specs,
    step_functions,
    training_arrays,
    weight_specs,
)
from gshard_nmt.run.compiled_steps import lower_train_step
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_divides
from gshard_nmt.spmd import ahead_of_time
from gshard_nmt.spmd.ahead_of_time import DoesNotFit
from gshard_nmt.spmd.mesh import Mesh, resized_mesh
from gshard_nmt.spmd.topology import EXAMPLES, MAX_CPU_DEVICES, Topology


@dataclasses.dataclass(frozen=True)
class Request:
    """What to inspect, and how to show it."""

    config: Config  # the run
    name: str  # name of the config
    topologies: Sequence[str] = ()  # names of the machines
    # whether to scale experts, groups and rows in proportion to the devices
    scale_with_devices: bool = False
    tokens: float = 1e12  # number of training tokens of the run whose cost the report gives


@dataclasses.dataclass(frozen=True)
class Target:
    """The requested config, adapted to one topology."""

    topology: Topology  # the machine
    config: Config  # the config on the machine's number of devices
    functions: StepFunctions  # the step functions of that config
    notes: Sequence[str]  # the changes that were made, for the report


def show_parameters(config: Config) -> None:
    functions = step_functions(config)
    sys.stdout.write(parameter_table(state_specs(functions), config.mesh))
    counts = count(config, functions)
    sys.stdout.write(
        f"\nparameters: {counts.total:,} in all, {counts.active_per_token:,} active per token, "
        f"{counts.per_device:,} on each of {config.mesh.num_devices:,} devices\n"
    )


def inspect(request: Request, json_file: Path | None = None) -> None:
    """Compiles the step for each topology and prints a report, also if a program does not fit.

    `json_file` gets the JSON record, which is a list for several topologies.
    """
    # Compiling takes minutes, so every check that needs no compiler comes first.
    topologies = [Topology.parse(name) for name in request.topologies]
    targets = [adapt(request, topology) for topology in topologies]
    for target in targets:
        check_divides(target.config, training_arrays(target.config, target.functions))
    ahead_of_time.check_available(topologies)
    inspections = []
    try:
        for target in targets:
            inspections.append(inspect_one(request, target))
            sys.stdout.write(report.report(inspections[-1], request.tokens) + "\n")
            sys.stdout.flush()
    finally:
        # What is there stays, if a compiler refuses the next program.
        if records := list(map(as_json, inspections)):
            _write_json(json_file, records if len(targets) > 1 else records[0])
    if len(inspections) > 1:
        sys.stdout.write(report.growth(inspections))


def _write_json(file: Path | None, figures: Any) -> None:
    if file is not None:
        with files.reported_as(f"--json {file}"):
            files.write_json(file, figures)


def advise(request: Request, best: int, json_file: Path | None) -> None:
    """Ranks all meshes of a config on one slice by formula, compiles the best, and prints the result.

    The mesh of the config is compiled too, if it has the slice's number of devices.
    """
    topology = Topology.parse(*request.topologies)
    config = request.config
    arrays = training_arrays(config, step_functions(config))
    with report.waiting(f"ranking the meshes of {topology.num_devices:,} devices"):
        ranked = ranking.rank(config, arrays, topology)
    ahead_of_time.check_available([topology])
    compiled: list[tuple[ranking.Candidate, Inspection]] = []
    refused: UserError | None = None
    for candidate in [*ranked.candidates[: 2 * best], *([ranked.own] if ranked.own else [])]:
        is_enough = sum(inspection.fits for _, inspection in compiled) >= best
        if is_enough and candidate is not ranked.own:
            continue
        sys.stderr.write(f"{candidate.title}\n")
        own = config.replace(mesh=candidate.mesh)
        target = Target(topology, own, step_functions(own), [candidate.title])
        try:
            compiled.append((candidate, inspect_one(request, target)))
        except UserError as error:
            refused = refused or UserError(f"{candidate.title}: {error}")
    if refused and not compiled:
        raise refused
    if refused:
        sys.stderr.write(f"not all of them are compiled: {refused}\n")
    compiled = ranking.compiled_first(compiled)
    sys.stdout.write(ranking.report(ranked, compiled, request.name, topology))
    records = [as_json(inspection) for _, inspection in compiled]
    _write_json(json_file, {"ranking": ranking.ranking_as_json(ranked), "compiled": records})


def default_topology(mesh: Mesh) -> str:
    """Returns the topology if the user names none: one CPU device for each device of the mesh.

    Raises UserError if these are too many for the CPU compiler.
    """
    if mesh.num_devices <= MAX_CPU_DEVICES:
        return f"cpu:{mesh.num_devices}"
    raise UserError(
        f"the config's mesh has {mesh.num_devices} devices, and a program for more than "
        f"{MAX_CPU_DEVICES} CPU devices takes too long to compile. Name a machine with --topology, "
        f"for example {', '.join(EXAMPLES)}."
    )


def adapt(request: Request, topology: Topology) -> Target:
    """Adapts the requested config to the devices of a topology; raises UserError if it cannot."""
    config, notes = request.config, []
    before, devices = config.mesh.num_devices, topology.num_devices
    if before != devices:
        config = config.replace(mesh=resized_mesh(config.mesh, devices, topology.name))
        order = "; Mesh.device_order is left out" if request.config.mesh.device_order else ""
        notes.append(
            f"Mesh.shape {list(request.config.mesh.shape)} was changed to {list(config.mesh.shape)} "
            f"to fit {topology.name}{order}"
        )
    if request.scale_with_devices:
        config, changes = _scale(config, before, devices)
        notes += changes
    return Target(topology, config, step_functions(config), notes)


def _scale(config: Config, before: int, after: int) -> tuple[Config, list[str]]:
    """Returns a config with experts, groups and rows scaled with the devices, and a note for each change.

    See GShard section 5: E, G = O(D).
    """
    notes: list[str] = []
    changes: dict[str, dict[str, int]] = {}
    for part, field in (("model", "experts"), ("model", "num_groups"), ("data", "rows")):
        setting, value = f"{part.capitalize()}.{field}", getattr(getattr(config, part), field)
        if value * after % before:
            raise UserError(
                f"--scale_with_devices: {setting} = {value} for {before} devices cannot be "
                f"scaled to {after}: {value * after / before:g} is not a whole number. Choose another "
                f"--topology or another {setting}."
            )
        new_value = value * after // before
        if new_value != value:
            notes.append(f"{setting} {value} was changed to {new_value}")
            changes.setdefault(part, {})[field] = new_value
    return config.replace(**changes), notes


def inspect_one(request: Request, target: Target) -> Inspection:
    """Lowers and compiles the step of a target, and reads the compiled program."""
    topology, config, mesh = target.topology, target.config, target.config.mesh
    devices = ahead_of_time.devices_of(topology, mesh)
    began = time.perf_counter()
    with report.waiting(f"lowering {request.name} for {topology.num_devices:,} devices"):
        lowered = lower_train_step(config, target.functions, mesh)
    lower_seconds = time.perf_counter() - began
    lengths = [config.data.target_length]  # a language model reads no source
    lengths += [config.data.source_length] if config.model.encoder_layers else []

    def inspection(does_not_fit: Sequence[str] = (), **cost: Any) -> Inspection:
        return Inspection(
            config=request.name,
            mesh=mesh.sizes,
            counts=count(config, target.functions),
            tokens_per_step=config.data.rows * max(lengths),
            overrides=mesh.overrides,
            notes=list(target.notes),
            does_not_fit=does_not_fit,
            **cost,
        )

    try:
        with report.waiting(f"compiling it for {topology.name}"):
            compiled = ahead_of_time.compile_for(topology, devices, lowered, donate=(0,))
    except DoesNotFit as error:
        estimated = memory.estimated(lowered.signature, mesh, error)
        lines = memory.what_would_help(config, estimated, error)
        compilation = Compilation(lower_seconds)
        return inspection(lines, topology=topology, compilation=compilation, memory=estimated)
    with report.waiting("reading the compiled program"):
        weights = weight_specs(target.functions)
        is_circular = config.model.stack == "pipeline" and config.model.schedule == "circular"
        cost = program_cost.cost_of(compiled, devices, lowered, weights, lower_seconds, is_circular)
    return inspection(**vars(cost))


def count(config: Config, functions: StepFunctions) -> Counts:
    """Counts the weights of a config; nothing is allocated."""
    model, mesh = config.model, config.mesh
    total = active = per_device = 0
    for name, spec in weight_specs(functions).items():
        size = math.prod(spec.shape)
        # Experts are [E, ...], or [R, E, ...] in a stack of R blocks. A token uses a few of the E.
        is_expert = spec.letters.removeprefix("R").startswith("E")
        used = size * model.moe(training=True).choices // model.experts if is_expert else size
        total, active = total + size, active + used
        per_device += size // math.prod(map(mesh.axis_size, mesh.partition(spec.letters, name)))
    return Counts(total, active, per_device)
