"""gshard-inspect --doctor: lists everything that is wrong with a run before it starts.

A program stops at the first mistake that it meets. The doctor goes on, and each problem comes with
the nearest legal value. A setting with an illegal value is replaced by its default for the checks
that follow. Nothing is lowered or compiled.
"""

import dataclasses
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gshard_nmt import paths
from gshard_nmt.checks import versions
from gshard_nmt.errors import UserError
from gshard_nmt.model.steps import BATCH_ARRAYS
from gshard_nmt.quantities import size_text
from gshard_nmt.run.arrays import state_specs, step_functions, weights_of
from gshard_nmt.settings import divides
from gshard_nmt.settings.config import CLASSES, Config, Key, Train, named_settings
from gshard_nmt.settings.values import Setting, build
from gshard_nmt.spmd.lowering import ArraySpec, ArraySpecs
from gshard_nmt.spmd.memory import free_machine_memory
from gshard_nmt.spmd.mesh import Mesh
from gshard_nmt.spmd.resize import nearest_mesh
from gshard_nmt.spmd.topology import Topology
from gshard_nmt.suggest import did_you_mean


@dataclasses.dataclass(frozen=True)
class DoctorRequest:
    """The run to check."""

    source: str  # the name or the path of a config
    overrides: Sequence[str] = ()  # the `--gin` flags
    data: Path | None = None  # the folder of prepared data; None skips its checks
    workdir: Path | None = None  # the run folder; None means the current folder
    topologies: Sequence[str] = ()  # names of the machines to run on; empty means this machine
    # whether to read all of the prepared data and compare it with its checksums
    reads_data: bool = False
    # bytes per second between a chip and those of other slices, see `Topology.parse`
    slice_link: float | None = None


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report."""

    area: str  # what was checked: versions, config, topology, mesh, data, memory or disk
    text: str  # the result
    mark: str  # "PROBLEM", "note" or "ok"

    @property
    def is_problem(self) -> bool:
        """Whether the run would fail because of it."""
        return self.mark == "PROBLEM"


def show_doctor(request: DoctorRequest) -> None:
    """Prints everything that is right and wrong with a run. Compiles nothing.

    Raises:
      UserError: the run has a problem.
    """
    findings = examine(request)
    sys.stdout.write(report_text(findings))
    sys.stdout.flush()
    problems = sum(finding.is_problem for finding in findings)
    if problems:
        count = "1 problem" if problems == 1 else f"{problems} problems"
        raise UserError(
            f"{count} with {request.source}; each PROBLEM line above says what to change."
        )


def examine(request: DoctorRequest) -> list[Finding]:
    """Returns the result of every check, in the order in which a run meets them."""
    machines, unknown = _machines(request.topologies, request.slice_link)
    findings = _problems("versions", [*versions.packages(), *versions.compilers(machines)])
    findings = findings or [_ok("versions", "every package has a tested version")]
    config, config_findings = load_config_with_problems(request)
    findings += config_findings or [
        _ok("config", "every setting is known, has the right type and is in its range")
    ]
    findings += _problems("topology", unknown)
    if config is None:
        return findings
    specs = state_specs(step_functions(config))
    findings += mesh_findings(config, specs, machines)
    if request.data is not None:
        problems = list(data_problems(config, request.data, request.reads_data))
        checked = " and is as it was prepared" if request.reads_data else ""
        fits = _ok("data", f"{request.data} fits the config{checked}")
        findings += _problems("data", problems) or [fits]
    findings += memory_findings(config, specs, machines)
    findings.append(disk_finding(specs, config.train, request.workdir or Path()))
    return findings


def _problems(area: str, texts: Iterable[str]) -> list[Finding]:
    return [Finding(area, text, "PROBLEM") for text in texts]


def _ok(area: str, text: str) -> Finding:
    return Finding(area, text, "ok")


def _machines(names: Sequence[str], slice_link: float | None) -> tuple[list[Topology], list[str]]:
    """Returns the topologies of these names, and an error for each name that is unknown."""
    known, unknown = [], []
    for name in names:
        try:
            known.append(Topology.parse(name, slice_link))
        except UserError as error:
            unknown.append(str(error))
    return known, unknown


def load_config_with_problems(request: DoctorRequest) -> tuple[Config | None, list[Finding]]:
    """Returns the config, and what is wrong with its settings.

    In the config, settings with a problem have their defaults. If the file of the config does not
    exist, None is returned instead.
    """
    from gshard_nmt.settings.gin_reader import read_settings

    errors: list[str] = []
    try:
        settings = read_settings(request.source, request.overrides, problems=errors)
    except UserError as error:
        return None, _problems("config", [str(error)])
    findings = _problems("config", dict.fromkeys(errors))
    accepted: dict[Key, Setting] = {}
    replaced: list[Key] = []
    for class_name in CLASSES:
        of_class = {key: setting for key, setting in settings.items() if key[0] == class_name}
        refused = _remove_refused(of_class)
        findings += _problems("config", filter(None, refused.values()))
        accepted |= of_class
        replaced += refused
    config = build(accepted)
    if replaced:
        values = named_settings(getattr(config, name.lower()) for name in CLASSES)
        defaults = ", ".join(f"{'.'.join(key)} = {values[key]!r}" for key in replaced)
        text = f"the checks below use these defaults instead: {defaults}"
        findings.append(Finding("config", text, "note"))
    return config, findings


def _remove_refused(settings: dict[Key, Setting]) -> dict[Key, str]:
    """Removes from `settings` those that their class refuses; returns the reason for each.

    Args:
      settings: settings of one class. Settings that are missing have their defaults.

    Returns:
      The reason is "" if a setting is refused only because another one was removed.
    """
    refused: dict[Key, str] = {}
    while error := _refusal(settings):
        # If settings contradict each other, we remove the one that a --gin flag sets.
        named = [key for key in settings if ".".join(key) in error.settings]
        candidates = named or list(settings)
        from_flags = [key for key in candidates if settings[key].where.startswith("--gin")]
        key = (from_flags or candidates)[0]
        follows = any(".".join(key) in error.settings for key in refused)
        refused[key] = "" if follows else str(error)
        del settings[key]
    return refused


def _refusal(settings: Mapping[Key, Setting]) -> UserError | None:
    """Returns the error of a config of these settings and defaults, or None if it is valid."""
    try:
        build(settings)
    except UserError as error:
        return error
    return None


def mesh_findings(config: Config, specs: ArraySpecs, machines: Sequence[Topology]) -> list[Finding]:
    """Checks that the config divides over its mesh, and over the mesh that each machine would need."""
    on_mesh = [problem.text for problem in divides.problems(config, specs, decoding=True)]
    try:
        divides.check_validation(config)
    except UserError as error:
        on_mesh += [str(error)] if str(error) not in on_mesh else []
    findings = _problems("mesh", on_mesh) or [_ok("mesh", _mesh_words(config.mesh))]
    mesh = config.mesh
    for machine in machines:
        nearest = nearest_mesh(mesh, machine.num_devices)
        if nearest is mesh:
            continue
        shape = nearest.shape
        text = (
            f"Mesh.shape {list(mesh.shape)} needs {mesh.num_devices} devices, but {machine.name} has "
            f"{machine.num_devices}; the nearest legal value is --gin 'Mesh.shape = {tuple(shape)}'."
        )
        findings += _problems("mesh", [text])
        on_machine = divides.problems(config.replace(mesh=nearest), specs, decoding=True)
        texts = [problem.text for problem in on_machine if problem.text not in on_mesh]
        findings += _problems("mesh", (f"with Mesh.shape {list(shape)}, {text}" for text in texts))
    return findings + _override_notes(mesh, specs)


def _override_notes(mesh: Mesh, specs: ArraySpecs) -> list[Finding]:
    """Notes the patterns of Mesh.overrides that match no array.

    They may be typing errors. They may also be meant for another model on the same mesh.
    """
    notes = []
    names = [*specs, *weights_of(specs), *BATCH_ARRAYS]
    for pattern in mesh.unmatched_overrides(names):
        last = pattern.rpartition("/")[2].strip("*")
        hint = did_you_mean(last, (name.rpartition("/")[2] for name in names), prefix="*/")
        text = f"Mesh.overrides has {pattern!r}, which no tensor of this model matches{hint}"
        notes.append(Finding("mesh", text, "note"))
    return notes


def _mesh_words(mesh: Mesh) -> str:
    axes = zip(mesh.axes, mesh.shape, strict=True)
    shape = " x ".join(f"{axis}={size}" for axis, size in axes)
    return f"{shape or 'one device'}: rows, groups, experts and every weight divide"


def data_problems(config: Config, folder: Path, reads_data: bool = False) -> Iterator[str]:
    """Yields an error for each setting that does not fit prepared data.

    If the data cannot be read, it yields only that error.

    Args:
      reads_data: whether to read every file and yield an error for each that was changed.
    """
    from gshard_nmt.data.sets.shards import PreparedData

    try:
        prepared = PreparedData.open(folder)
    except UserError as error:
        yield str(error)
        return
    yield from map(str, prepared.misfits(config.data))
    if reads_data:
        for name in prepared.changed_files():
            yield f"{name} of {folder} was changed since it was prepared; prepare the data again"


def memory_findings(
    config: Config, specs: ArraySpecs, machines: Sequence[Topology]
) -> list[Finding]:
    """Checks that the training state alone fits each machine; a step needs more than that."""
    findings = []
    for machine in machines:
        if machine.chip is not None:
            needed = _state_bytes(nearest_mesh(config.mesh, machine.num_devices), specs)
            name = f"a device of {machine.name}"
            findings.append(_memory(needed, machine.chip.hbm_bytes, name, shared=False))
    # Virtual CPU devices share this machine's memory.
    cpus = [machine.num_devices for machine in machines if machine.chip is None]
    for devices in cpus if machines else [config.mesh.num_devices]:
        needed = devices * _state_bytes(nearest_mesh(config.mesh, devices), specs)
        name = f"this machine ({devices} CPU devices)"
        findings.append(_memory(needed, free_machine_memory(), name, shared=True))
    return findings


def _state_bytes(mesh: Mesh, specs: ArraySpecs) -> int:
    """Returns the bytes of the training state on one device."""
    return sum(_shard_bytes(mesh, name, spec) for name, spec in specs.items())


def _memory(needed: int, available: int, owner: str, shared: bool) -> Finding:
    """Compares the bytes of the training state with those of a memory.

    Args:
      needed, available: bytes.
      owner: what has the memory, for the report.
      shared: whether all devices share the memory, so that more devices do not help.
    """
    sizes = f"the training state takes {size_text(needed)} of the {size_text(available)} of {owner}"
    if needed > available:
        least = 2 ** math.ceil(math.log2(needed / available))
        advice = (
            f"split the weights over at least {least} times the devices, or make the model smaller"
        )
        if shared:
            advice = "make the model smaller, or take a machine with more memory"
        return Finding("memory", f"{sizes}; {advice}.", "PROBLEM")
    if needed > 0.6 * available:
        return _ok(
            "memory",
            f"{sizes}, which leaves little for activations; gshard-inspect --topology shows the memory "
            "of a whole step",
        )
    return _ok("memory", sizes)


def _shard_bytes(mesh: Mesh, name: str, spec: ArraySpec) -> int:
    try:
        partition = mesh.partition(spec.letters, name)
    except UserError:  # the checks of the mesh report it
        partition = ()
    return spec.nbytes // math.prod(mesh.axis_size(axes) for axes in partition)


def disk_finding(specs: ArraySpecs, train: Train, workdir: Path) -> Finding:
    """Checks that the last and the best checkpoints fit on the disk, and one that is being written.

    Those of Train.keep_every are not counted.
    """
    count = train.keep_last + train.keep_best + 1
    state = sum(spec.nbytes for spec in specs.values())
    if paths.is_url(workdir):
        return _ok(
            "disk", f"{workdir} is in a bucket; three checkpoints take {size_text(3 * state)}"
        )
    folder = workdir.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        text = f"--workdir {workdir}: {folder} is a file; give a folder."
        return Finding("disk", text, "PROBLEM")
    free = shutil.disk_usage(folder).free
    needed = size_text(count * state)
    sizes = f"{count} checkpoints take {needed} of the {size_text(free)} free at {folder}"
    if count * state > free:
        return Finding("disk", f"{sizes}; make room, or put --workdir on a larger disk.", "PROBLEM")
    return _ok("disk", sizes)


def report_text(findings: Sequence[Finding]) -> str:
    """Returns the report: one line for each finding."""
    return "".join(f"{finding.mark:<8} {finding.area:<9} {finding.text}\n" for finding in findings)
