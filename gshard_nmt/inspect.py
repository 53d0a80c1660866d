"""gshard-inspect: what a config will cost on a pod, before the pod is rented.

The real step is lowered and compiled by the real compiler for a topology that need not be there, and
the compiled program is read: memory, collectives, arithmetic. Nothing is allocated and nothing runs.
"""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files
from gshard_nmt.decoding.translator import BatchShape, Translator, batch_shape
from gshard_nmt.errors import UserError
from gshard_nmt.inspection import communication, compute, hlo, memory, terminal
from gshard_nmt.inspection.page import write_page
from gshard_nmt.inspection.record import Compilation, Counts, Inspection, as_json
from gshard_nmt.model.steps import StepFunctions
from gshard_nmt.run.arrays import (
    batch_specs,
    parameter_table,
    state_specs,
    step_functions,
    weight_specs,
)
from gshard_nmt.run.compiled_steps import lower_train_step
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_divides
from gshard_nmt.spmd import ahead_of_time
from gshard_nmt.spmd.ahead_of_time import DoesNotFit
from gshard_nmt.spmd.lowering import LoweredFunction
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.resize import resized_mesh
from gshard_nmt.spmd.runtime import Runtime
from gshard_nmt.spmd.topology import EXAMPLES, MAX_CPU_DEVICES, Topology


@dataclasses.dataclass(frozen=True)
class Request:
    """What to inspect and how to show it.

    Attributes:
      config: the run.
      name: of the config, as the user gave it.
      topologies: names of the machines.
      scale_with_devices: experts, groups and rows follow the number of devices.
      decoding: the decoding step instead of the training step.
      tokens: the budget that a run's cost is given for.
    """

    config: Config
    name: str
    topologies: Sequence[str] = ()
    scale_with_devices: bool = False
    decoding: bool = False
    tokens: float = 1e12


def show_parameters(config: Config) -> None:
    """Prints every array of the training state, and totals; compiles and allocates nothing."""
    steps = step_functions(config)
    sys.stdout.write(parameter_table(state_specs(steps), config.mesh))
    found = count(config, config.mesh)
    sys.stdout.write(
        f"\nparameters: {found.total:,} in all, {found.active_per_token:,} active per token, "
        f"{found.per_device:,} on each of {config.mesh.num_devices:,} devices\n"
    )


def inspect(request: Request, json_file: Path | None = None, page: Path | None = None) -> None:
    """Compiles the step for each topology and reports; one that does not fit is reported too.

    Args:
      request: what to inspect.
      json_file: gets the figures; a list where there are several topologies.
      page: gets the report with figures.

    Raises:
      UserError: an unknown topology, a config that cannot be partitioned, a file that cannot be
        written; nothing is compiled then.
    """
    # Every mistake that can be found without compiling is found before the first program is.
    for flag, file in (("--json", json_file), ("--html", page)):
        if file is not None:
            with files.told_as(f"{flag} {file}"):
                files.check_writable(file)
    wanted = [Topology.parse(name) for name in request.topologies]
    adapted = [adapt(request, topology) for topology in wanted]
    for _, config, _ in adapted:
        functions = step_functions(config)
        check_divides(config, {**batch_specs(config), **state_specs(functions)})
    ahead_of_time.check_available(wanted)
    inspections = []
    for topology, config, notes in adapted:
        found = inspect_one(request, config, topology, notes)
        sys.stdout.write(terminal.as_text(found, request.tokens) + "\n")
        sys.stdout.flush()
        inspections.append(found)
    if len(inspections) > 1:
        sys.stdout.write(terminal.growth(inspections))
    if json_file is not None:
        records = [as_json(found) for found in inspections]
        content = records[0] if len(records) == 1 else records
        with files.told_as(f"--json {json_file}"):
            files.write(json_file, json.dumps(content, indent=1) + "\n")
    if page is not None:
        with files.told_as(f"--html {page}"):
            write_page(inspections, request.tokens, page)


def default_topology(mesh: Mesh) -> str:
    """Where to compile for when the user names no machine: this one, with as many CPU devices.

    Raises:
      UserError: a CPU program of so many devices would take hours to compile.
    """
    if mesh.num_devices <= MAX_CPU_DEVICES:
        return f"cpu:{mesh.num_devices}"
    raise UserError(
        f"the config's mesh has {mesh.num_devices} devices; name a machine with --topology, for "
        f"instance {', '.join(EXAMPLES)}."
    )


def adapt(request: Request, topology: Topology) -> tuple[Topology, Config, list[str]]:
    """The config on the topology's number of devices, and notes of what was changed.

    Raises:
      UserError: the mesh has several axes and another number of devices.
    """
    config, notes = request.config, []
    before, devices = config.mesh.num_devices, topology.num_devices
    if before != devices:
        config = config.replace(mesh=resized_mesh(config.mesh, devices, topology.name))
        order = "; Mesh.device_order is left out" if request.config.mesh.device_order else ""
        notes.append(
            f"Mesh.shape {list(request.config.mesh.shape)} was made {list(config.mesh.shape)} to fit "
            f"{topology.name}{order}"
        )
    if request.scale_with_devices:
        config, scaled = _scaled(config, before, devices, request.decoding)
        notes += scaled
    if request.decoding:
        shape = decoding_shape(config)
        notes.append(
            f"one call of gshard-decode: {config.decode.rows} sources of {shape.source_length} tokens, "
            f"beam {config.decode.beam}, all {shape.max_steps} steps of the search"
        )
    return topology, config, notes


def _scaled(config: Config, before: int, after: int, decoding: bool) -> tuple[Config, list[str]]:
    """Experts, groups and rows in proportion to the devices (GShard section 5: E, G = O(D))."""
    notes: list[str] = []

    def scaled(part: str, field: str, value: int) -> int:
        if value * after % before:
            raise UserError(
                f"--scale_with_devices: {part}.{field} = {value} for {before} devices cannot be "
                f"scaled to {after}: {value * after / before:g} is not a whole number."
            )
        made = value * after // before
        if made != value:
            notes.append(f"{part}.{field} {value} was made {made}")
        return made

    model, data = config.model, config.data
    changes: dict[str, Any] = {
        field: scaled("Model", field, getattr(model, field))
        for field in ("experts", "num_groups")
        if getattr(model, field)
    }
    parts = {"model": changes, "data": {"rows": scaled("Data", "rows", data.rows)}}
    if decoding:
        parts["decode"] = {"rows": scaled("Decode", "rows", config.decode.rows)}
    return config.replace(**parts), notes


def inspect_one(
    request: Request, config: Config, topology: Topology, notes: Sequence[str]
) -> Inspection:
    """One config on one topology."""
    mesh, steps = config.mesh, step_functions(config)
    weights = weight_specs(steps)
    devices = ahead_of_time.devices_of(topology, mesh)
    began = time.perf_counter()
    with terminal.waiting(f"lowering {request.name} for {topology.num_devices:,} devices"):
        program = lower_step(request, config, steps, devices)
    lowered_after = time.perf_counter() - began
    found = Inspection(
        config=request.name,
        step="decoding" if request.decoding else "training",
        topology=topology,
        mesh=dict(zip(mesh.axes, mesh.shape, strict=True)),
        counts=count(config, mesh),
        compilation=Compilation(lowered_after, None, None, None),
        memory=memory.estimated(program.signature, mesh, 0, 0, temporaries=True),
        tokens_per_step=_tokens_per_step(request, config),
        overrides=mesh.overrides,
        notes=list(notes),
    )
    hbm = topology.chip.hbm_bytes if topology.chip else None
    try:
        with terminal.waiting(f"compiling it for {topology.name}"):
            donate = () if request.decoding else (0,)
            compiled = ahead_of_time.compile_for(topology, devices, program, donate)
    except DoesNotFit as error:
        return _refused(found, config, program, error)
    with terminal.waiting("reading the compiled program"):
        parsed = hlo.parse(compiled.text)
        dense = request.decoding or config.model.dispatch == "dense"
        coordinates = ahead_of_time.coordinates_of(topology, devices)
        around = communication.Surroundings(
            topology, mesh, weights, coordinates, program.annotated, dense
        )
        return dataclasses.replace(
            found,
            compilation=Compilation(
                lowered_after,
                compiled.compile_seconds,
                compiled.compile_cpu_seconds,
                parsed.num_instructions,
            ),
            memory=memory.measured(compiled.executable, parsed, program.signature, mesh, hbm),
            sources=communication.collectives(parsed, around),
            collective_instructions=communication.count_instructions(parsed),
            work=compute.work_by_origin(parsed, topology.chip),
            temporaries=memory.largest_temporaries(parsed),
        )


def decoding_shape(config: Config) -> BatchShape:
    """The largest batch that gshard-decode makes."""
    return batch_shape(config, max(config.decode.source_lengths))


def lower_step(
    request: Request, config: Config, functions: StepFunctions, devices: Runtime
) -> LoweredFunction:
    """Lowers the step as gshard-train, or gshard-decode, does."""
    if request.decoding:
        return Translator(config, functions, devices, {}).lower(decoding_shape(config))
    return lower_train_step(config, functions, config.mesh)


def _tokens_per_step(request: Request, config: Config) -> int:
    data = config.data
    if request.decoding:
        return config.decode.rows * decoding_shape(config).max_steps
    return data.rows * max(data.source_length, data.target_length)


def count(config: Config, mesh: Mesh) -> Counts:
    """Numbers of weights; nothing is allocated."""
    choices = 1 if getattr(config.model, "routing", "top2") == "switch" else 2
    total = active = per_device = nbytes = 0
    for name, spec in weight_specs(step_functions(config)).items():
        size = math.prod(spec.shape)
        shards = math.prod(mesh.axis_size(axes) for axes in mesh.partition(spec.letters, name))
        # The gate has the letter E too, and every token uses all of it.
        of_experts = "E" in spec.letters and spec.letters.removeprefix("R")[0] == "E"
        used = size * choices // config.model.experts if of_experts else size
        total, active = total + size, active + used
        per_device, nbytes = per_device + size // shards, nbytes + spec.nbytes // shards
    return Counts(total, active, per_device, nbytes)


def _refused(
    found: Inspection, config: Config, program: LoweredFunction, error: DoesNotFit
) -> Inspection:
    """The report of a program that the compiler gave up: two sizes, estimates, and what would help."""
    estimated = memory.estimated(
        program.signature,
        config.mesh,
        error.needed_bytes,
        error.available_bytes,
        temporaries="temporaries" in error.what,
    )
    over = error.needed_bytes - error.available_bytes
    lines = [
        f"DOES NOT FIT: {error.what} need {error.needed_bytes / terminal.GIB:.2f} GiB where "
        f"{error.available_bytes / terminal.GIB:.2f} GiB are available, "
        f"{over / terminal.GIB:.2f} GiB too much.",
        "The compiler gives these two sizes and no program; the breakdown is estimated.",
        "What would help:",
        *(f"  - {knob}" for knob in knobs(config, estimated)),
    ]
    return dataclasses.replace(found, memory=estimated, does_not_fit=lines)


def knobs(config: Config, needs: memory.Memory) -> list[str]:
    """Settings that would lower the memory of a device, the most promising first."""
    model, rows, found = config.model, config.data.rows, []
    split = config.mesh.axis_size(config.mesh.partition("B")[0])
    activations = needs.by_category["activations"]
    if getattr(model, "remat", "layer") == "none" and getattr(model, "stack", "") != "scan":
        found.append("Model.remat = 'layer' recomputes activations instead of keeping them")
    if getattr(model, "activation_dtype", "bfloat16") == "float32":
        found.append(
            f"Model.activation_dtype = 'bfloat16' halves activations, about "
            f"{terminal.size_text(activations / 2)} less"
        )
    room = (needs.hbm or 0) - (needs.peak - activations)
    fewer = int(rows * room / max(activations, 1)) // split * split
    if fewer > 0:
        found.append(
            f"Data.rows = {fewer} instead of {rows}: activations follow the rows at least, and "
            f"{terminal.size_text(room)} are left for them"
        )
        if getattr(model, "num_groups", 0):
            found.append(
                "Model.num_groups in proportion to Data.rows: the gates' one-hot tensors grow with the "
                "square of the tokens of a group"
            )
    else:
        found.append(
            f"fewer rows do not: without activations {-room / terminal.GIB:.2f} GiB are too much"
        )
    whole = needs.by_category["replicated_weights"]
    if whole > terminal.GIB:
        found.append(
            f"a rule in Mesh.rules that splits the replicated weights ({terminal.size_text(whole)}), for "
            "instance for H, N or V over a second mesh axis"
        )
    found.append("a topology with more devices, or chips with more memory")
    return found
