"""gshard-inspect: what a config will cost on a pod, before the pod is rented.

The real step is lowered and compiled by the real compiler for a topology that need not be there, and
the compiled program is read: memory, collectives, arithmetic. Nothing is allocated and nothing runs.
"""

import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from gshard_nmt import files
from gshard_nmt.checks import doctor, equivalence
from gshard_nmt.errors import UserError
from gshard_nmt.inspection import communication, compute, hlo, memory, terminal
from gshard_nmt.inspection.page import write_page
from gshard_nmt.inspection.record import Compilation, Counts, Inspection, as_json
from gshard_nmt.run.compiled_steps import (
    CONTROL,
    batch_specs,
    check_fits_mesh,
    parameter_table,
    specs_of,
)
from gshard_nmt.settings.values import as_text
from gshard_nmt.spmd import topology as topologies
from gshard_nmt.spmd.lowering import ArraySpec, LoweredProgram, lower
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.runtime import Runtime
from gshard_nmt.spmd.topology import DoesNotFit, Topology

if TYPE_CHECKING:
    from gshard_nmt.decode import Shape
    from gshard_nmt.model.steps import Steps
    from gshard_nmt.settings.config import Config

GIB = 2**30


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

    config: "Config"
    name: str
    topologies: Sequence[str] = ()
    scale_with_devices: bool = False
    decoding: bool = False
    tokens: float = 1e12


def show_parameters(config: "Config") -> None:
    """Prints every array of the training state, and totals; compiles and allocates nothing."""
    steps = steps_of(config)
    sys.stdout.write(parameter_table(specs_of(steps), config.mesh))
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
            with files.reported_as(f"{flag} {file}"):
                files.check_writable(file)
    wanted = [Topology.parse(name) for name in request.topologies]
    adapted = [adapt(request, topology) for topology in wanted]
    for _, config, _ in adapted:
        check_divides(config)
    topologies.check_available(wanted)
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
        with files.reported_as(f"--json {json_file}"):
            files.write(json_file, json.dumps(content, indent=1) + "\n")
    if page is not None:
        with files.reported_as(f"--html {page}"):
            write_page(inspections, request.tokens, page)


def default_topology(mesh: Mesh) -> str:
    """Where to compile for when the user names no machine: this one, with as many CPU devices.

    Raises:
      UserError: a CPU program of so many devices would take hours to compile.
    """
    if mesh.num_devices <= topologies.MAX_CPU_DEVICES:
        return f"cpu:{mesh.num_devices}"
    raise UserError(
        f"the config's mesh has {mesh.num_devices} devices; name a machine with --topology, for "
        f"instance {', '.join(topologies.EXAMPLES)}."
    )


def show_doctor(patient: doctor.Patient) -> None:
    """Prints everything that is right and wrong with a run; compiles nothing.

    Raises:
      UserError: something is wrong.
    """
    findings = doctor.examine(patient)
    sys.stdout.write(doctor.as_text(findings))
    sys.stdout.flush()
    problems = sum(finding.is_problem for finding in findings)
    if problems:
        count = "1 problem" if problems == 1 else f"{problems} problems"
        raise UserError(f"{count} with {patient.source}; each line above says what would be right.")


def show_equivalence(config: "Config", name: str, devices: int = 0) -> None:
    """Runs the config, at reduced size, on one CPU device and on a mesh of several, and compares.

    Args:
      config: the run.
      name: of the config.
      devices: of the mesh; 0 takes the config's number, at most 8.

    Raises:
      UserError: loss or a gradient differs by more than the tolerance.
    """
    now = config.mesh.num_devices
    wanted = devices or (8 if now == 1 else min(8, now))
    mesh = equivalence.reduced_mesh(_grown(config.mesh, wanted), wanted)
    model = equivalence.reduced_model(config.model, mesh)
    rows = 2 * mesh.axis_size(mesh.partition("B")[0])
    data = dataclasses.replace(
        config.data,
        rows=rows,
        source_length=equivalence.LENGTH,
        target_length=equivalence.LENGTH,
        source_vocabulary=equivalence.VOCABULARY,
        target_vocabulary=equivalence.VOCABULARY,
    )
    reduced = _replace(config, model=model, mesh=mesh, data=data)
    check_divides(reduced)
    tolerance = equivalence.TOLERANCE
    shape = " x ".join(f"{axis}={n}" for axis, n in zip(mesh.axes, mesh.shape, strict=True))
    with waiting(f"{name} at reduced size on 1 device and on {mesh.num_devices} ({shape})"):
        batch = equivalence.random_batch(list(batch_specs(reduced)), rows)
        found = equivalence.compare(reduced, steps_of(reduced), batch, tolerance)
    rows_of_table = [("tensor", "difference", "")]
    for one in found:
        verdict = "equal" if one.is_equal else "DIFFERENT"
        rows_of_table.append((one.name, f"{one.difference:.1e}", verdict))
    sys.stdout.write(terminal.table(rows_of_table) + "\n")
    wrong = [one for one in found if not one.is_equal]
    if wrong:
        raise UserError(
            f"{len(wrong)} of {len(found)} tensors differ by more than {tolerance:g} of their largest "
            f"value between 1 device and {mesh.num_devices} ({shape}), first {wrong[0].name}: this is "
            "a bug; please report it with this config."
        )
    dtype = config.model.activation_dtype
    noted = "" if dtype == "float32" else f", activations in float32 instead of {dtype}"
    sys.stdout.write(
        f"loss and {len(found) - 1} gradients on 1 device and on {mesh.num_devices} ({shape}) are "
        f"equal within {tolerance:g} of each tensor's largest value{noted}\n"
    )


def _grown(mesh: Mesh, devices: int) -> Mesh:
    """A mesh of one device made long enough to be split at all."""
    if mesh.num_devices >= devices:
        return mesh
    shape = (devices // math.prod(mesh.shape[1:]), *mesh.shape[1:])
    return dataclasses.replace(mesh, shape=shape, device_order=())


def steps_of(config: "Config") -> "Steps":
    """The programs of a config before its data are prepared: vocabularies of the size it asks for."""
    from gshard_nmt.model.steps import Steps

    data = config.data
    return Steps(config.model, config.optimizer, data.source_vocabulary, data.target_vocabulary)


def adapt(request: Request, topology: Topology) -> tuple[Topology, "Config", list[str]]:
    """The config on the topology's number of devices, and notes of what was changed.

    Raises:
      UserError: the mesh has several axes and another number of devices.
    """
    config, notes = request.config, []
    before, devices = config.mesh.num_devices, topology.num_devices
    if before != devices:
        config = _replace(config, mesh=_resized(config.mesh, topology))
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


def _resized(mesh: Mesh, topology: Topology) -> Mesh:
    """The mesh with its one axis, or its first where the others divide, as long as needed."""
    others = math.prod(mesh.shape[1:])
    if topology.num_devices % others:
        raise UserError(
            f"Mesh.shape {list(mesh.shape)} is {mesh.num_devices} devices and {topology.name} has "
            f"{topology.num_devices}; set a Mesh.shape whose sizes multiply to "
            f"{topology.num_devices} with --gin 'Mesh.shape = ...'."
        )
    shape = (topology.num_devices // others, *mesh.shape[1:])
    return dataclasses.replace(mesh, shape=shape, device_order=())


def _scaled(
    config: "Config", before: int, after: int, decoding: bool
) -> tuple["Config", list[str]]:
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
    parts = {
        "model": dataclasses.replace(model, **changes),
        "data": dataclasses.replace(data, rows=scaled("Data", "rows", data.rows)),
    }
    if decoding:
        rows = scaled("Decode", "rows", config.decode.rows)
        parts["decode"] = dataclasses.replace(config.decode, rows=rows)
    return _replace(config, **parts), notes


def _replace(config: "Config", **parts: Any) -> "Config":
    changed = dataclasses.replace(config, **parts)
    kept = (getattr(changed, f.name) for f in dataclasses.fields(changed) if f.name != "text")
    return dataclasses.replace(changed, text=as_text(kept))


def check_divides(config: "Config") -> None:
    """Raises UserError where an array of the step does not divide over the mesh, in its letters."""
    check_fits_mesh(config)
    arrays = {**batch_specs(config), **specs_of(steps_of(config))}
    for name, spec in arrays.items():
        config.mesh.check_divides(name, spec.letters, spec.shape)


def inspect_one(
    request: Request, config: "Config", topology: Topology, notes: Sequence[str]
) -> Inspection:
    """One config on one topology."""
    mesh, steps = config.mesh, steps_of(config)
    weights = weight_specs(steps)
    devices = topologies.devices_of(topology, mesh)
    began = time.perf_counter()
    with waiting(f"lowering {request.name} for {topology.num_devices:,} devices"):
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
        with waiting(f"compiling it for {topology.name}"):
            donate = () if request.decoding else (0,)
            compiled = topologies.compile_for(topology, devices, program, donate)
    except DoesNotFit as error:
        return _refused(found, config, program, error)
    with waiting("reading the compiled program"):
        parsed = hlo.parse(compiled.text)
        dense = request.decoding or config.model.dispatch == "dense"
        coordinates = topologies.coordinates_of(topology, devices)
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


def decoding_shape(config: "Config") -> "Shape":
    """The largest batch that gshard-decode makes."""
    from gshard_nmt.decode import shape_of

    return shape_of(config, max(config.decode.source_lengths))


def lower_step(
    request: Request, config: "Config", steps: "Steps", devices: Runtime
) -> LoweredProgram:
    """The step as gshard-train, or gshard-decode, lowers it."""
    if request.decoding:
        from gshard_nmt.decode import Translator

        return Translator(config, steps, devices, {}).lower(decoding_shape(config))
    state = specs_of(steps)
    letters = {name: spec.letters for name, spec in state.items()}
    inputs = [state, batch_specs(config), CONTROL]
    return lower(steps.train, inputs, [letters, {}], config.mesh)


def _tokens_per_step(request: Request, config: "Config") -> int:
    data = config.data
    if request.decoding:
        return config.decode.rows * decoding_shape(config).max_steps
    return data.rows * max(data.source_length, data.target_length)


def weight_specs(steps: "Steps") -> dict[str, ArraySpec]:
    """The model's weights by name."""
    prefix = "parameters/"
    state = specs_of(steps).items()
    return {name[len(prefix) :]: spec for name, spec in state if name.startswith(prefix)}


def count(config: "Config", mesh: Mesh) -> Counts:
    """Numbers of weights; nothing is allocated."""
    choices = 1 if getattr(config.model, "routing", "top2") == "switch" else 2
    total = active = per_device = nbytes = 0
    for name, spec in weight_specs(steps_of(config)).items():
        size = math.prod(spec.shape)
        shards = math.prod(mesh.axis_size(axes) for axes in mesh.partition(spec.letters, name))
        # The gate has the letter E too, and every token uses all of it.
        of_experts = "E" in spec.letters and spec.letters.removeprefix("R")[0] == "E"
        used = size * choices // config.model.experts if of_experts else size
        total, active = total + size, active + used
        per_device, nbytes = per_device + size // shards, nbytes + spec.nbytes // shards
    return Counts(total, active, per_device, nbytes)


def _refused(
    found: Inspection, config: "Config", program: LoweredProgram, error: DoesNotFit
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
        f"DOES NOT FIT: {error.what} need {error.needed_bytes / GIB:.2f} GiB where "
        f"{error.available_bytes / GIB:.2f} GiB are available, {over / GIB:.2f} GiB too much.",
        "The compiler gives these two sizes and no program; the breakdown is estimated.",
        "What would help:",
        *(f"  - {knob}" for knob in knobs(config, estimated)),
    ]
    return dataclasses.replace(found, memory=estimated, does_not_fit=lines)


def knobs(config: "Config", needs: memory.Memory) -> list[str]:
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
        found.append(f"fewer rows do not: without activations {-room / GIB:.2f} GiB are too much")
    whole = needs.by_category["replicated_weights"]
    if whole > GIB:
        found.append(
            f"a rule in Mesh.rules that splits the replicated weights ({terminal.size_text(whole)}), for "
            "instance for H, N or V over a second mesh axis"
        )
    found.append("a topology with more devices, or chips with more memory")
    return found


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Says on stderr what is being done, with the time it takes."""
    console = Console(stderr=True, highlight=False)
    began = time.perf_counter()
    if console.is_terminal:
        with console.status(what + " ..."):
            yield
    else:
        yield
    console.print(f"{what}: {time.perf_counter() - began:.1f} s", markup=False, soft_wrap=True)
