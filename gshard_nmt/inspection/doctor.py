"""gshard-inspect --doctor: lists everything that is wrong with a run before it starts.

A program stops at the first mistake that it meets. The doctor goes on, and each problem comes with
the nearest legal value. A setting with an illegal value is replaced by its default for the checks
that follow. Nothing is lowered or compiled.
"""

import contextlib
import dataclasses
import importlib.metadata
import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement

from gshard_nmt import paths
from gshard_nmt.errors import UserError, did_you_mean
from gshard_nmt.model.steps import BATCH_ARRAYS
from gshard_nmt.quantities import size_text
from gshard_nmt.run.arrays import state_specs, step_functions, weights_of
from gshard_nmt.settings import divides
from gshard_nmt.settings.config import CLASSES, Config, Key, Train, named_settings
from gshard_nmt.settings.values import build
from gshard_nmt.spmd.chips import Gpu
from gshard_nmt.spmd.lowering import ArraySpecs
from gshard_nmt.spmd.memory import free_machine_memory
from gshard_nmt.spmd.mesh import nearest_mesh
from gshard_nmt.spmd.topology import INSTALL_CUDA, INSTALL_LIBTPU, Topology


@dataclasses.dataclass(frozen=True)
class DoctorRequest:
    """The run to check."""

    source: str  # the name or the path of a config
    overrides: Sequence[str] = ()  # the `--gin` flags
    data: Path | None = None  # the folder of prepared data; None skips its checks
    workdir: Path | None = None  # the run folder; None means the current folder
    topologies: Sequence[str] = ()  # names of the machines to run on; empty means this machine
    reads_data: bool = False  # whether to read all of the data and compare it with its checksums
    slice_link: float | None = None  # see `Topology.parse`


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report."""

    area: str  # what was checked: versions, config, topology, mesh, data, memory or disk
    text: str
    mark: str  # "PROBLEM", "note" or "ok"

    @property
    def is_problem(self) -> bool:
        return self.mark == "PROBLEM"


def show_doctor(request: DoctorRequest) -> None:
    """Prints everything that is right and wrong with a run. Compiles nothing.

    Raises:
      UserError: the run has a problem.
    """
    findings = list(examine(request))
    for finding in findings:
        sys.stdout.write(f"{finding.mark:<8} {finding.area:<9} {finding.text}\n")
    sys.stdout.flush()
    if problems := sum(finding.is_problem for finding in findings):
        count = "1 problem" if problems == 1 else f"{problems} problems"
        raise UserError(
            f"{count} with {request.source}; each PROBLEM line above says what to change."
        )


def examine(request: DoctorRequest) -> Iterator[Finding]:
    machines, unknown = [], []
    for name in request.topologies:
        try:
            machines.append(Topology.parse(name, request.slice_link))
        except UserError as error:
            unknown.append(str(error))
    versions = [*package_problems(), *compiler_problems(machines)]
    yield from _checked("versions", versions, "every package has a tested version")
    config, config_findings = load_config_with_problems(request)
    right = "every setting is known, has the right type and is in its range"
    yield from config_findings or _checked("config", (), right)
    yield from _problems("topology", unknown)
    if config is None:
        return
    specs = state_specs(step_functions(config))
    yield from _mesh(config, specs, machines)
    if request.data is not None:
        checked = " and is as it was prepared" if request.reads_data else ""
        right = f"{request.data} fits the config{checked}"
        yield from _checked("data", _data_problems(config, request), right)
    yield from _memory(config, specs, machines)
    yield _disk(specs, config.train, request.workdir or Path())


def _problems(area: str, texts: Iterable[str]) -> list[Finding]:
    return [Finding(area, text, "PROBLEM") for text in texts]


def _checked(area: str, problems: Iterable[str], right: str) -> list[Finding]:
    return _problems(area, problems) or [Finding(area, right, "ok")]


def package_problems() -> Iterator[str]:
    """Yields a problem for each package that is missing, or has a version that was not tested."""
    for text in importlib.metadata.requires("gshard-nmt") or ():
        requirement = Requirement(text)
        if requirement.marker:
            continue  # it belongs to an extra, which is optional
        name, bounds, version = requirement.name, requirement.specifier, _version(requirement.name)
        install = f"pip install '{name}{bounds}'"
        if version is None:
            yield f"{name} is not installed; install it: {install}."
        elif version not in bounds:
            yield f"{name} {version} is installed; gshard-nmt needs {bounds}. Install it: {install}."


def compiler_problems(machines: Sequence[Topology]) -> Iterator[str]:
    """Yields a problem for each compiler of these machines that is missing or was not tested."""
    gpus = [machine.name for machine in machines if isinstance(machine.chip, Gpu)]
    tpus = [machine.name for machine in machines if machine.chip and machine.name not in gpus]
    for names, package, install in (
        (tpus, "libtpu", INSTALL_LIBTPU),
        (gpus, "jax-cuda13-plugin", INSTALL_CUDA),
    ):
        needed_for, version = f"--topology {', '.join(names)} needs", _version(package)
        tested = install.partition("==")[2].rstrip(".*'")
        if names and version is None:
            yield f"{package} is not installed; {needed_for} it. Install it: {install}."
        elif names and not f"{version}.".startswith(f"{tested}."):
            yield f"{package} {version} is installed; {needed_for} {tested}. Install it: {install}."


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


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
    refused: list[Key] = []
    config = None
    while config is None:
        try:
            config = build(settings)
        except UserError as error:
            wrong = [key for key in settings if ".".join(key) in error.settings] or list(settings)
            # If settings contradict each other, we remove the one that a --gin flag sets.
            wrong.sort(key=lambda key: not settings[key].where.startswith("--gin"))
            # Without a setting that was removed, others may be refused that are right.
            if not any(".".join(key) in error.settings for key in refused):
                errors.append(str(error))
            refused.append(wrong[0])
            del settings[wrong[0]]
    findings = _problems("config", dict.fromkeys(errors))
    if refused:
        values = named_settings(getattr(config, name.lower()) for name in CLASSES)
        defaults = ", ".join(f"{'.'.join(key)} = {values[key]!r}" for key in refused)
        text = f"the checks below use these defaults instead: {defaults}"
        findings.append(Finding("config", text, "note"))
    return config, findings


def _mesh(config: Config, specs: ArraySpecs, machines: Sequence[Topology]) -> Iterator[Finding]:
    """Checks that the config divides over its mesh, and over the mesh that each machine would need."""
    on_mesh = [problem.text for problem in divides.problems(config, specs, decoding=True)]
    try:
        divides.check_validation(config)
    except UserError as error:
        on_mesh += [str(error)] if str(error) not in on_mesh else []
    mesh = config.mesh
    sizes = " x ".join(f"{axis}={n}" for axis, n in zip(mesh.axes, mesh.shape, strict=True))
    divide = f"{sizes or 'one device'}: rows, groups, experts and every weight divide"
    yield from _checked("mesh", on_mesh, divide)
    for machine in machines:
        nearest = nearest_mesh(mesh, machine.num_devices)
        if nearest is mesh:
            continue
        shape = nearest.shape
        text = (
            f"Mesh.shape {list(mesh.shape)} needs {mesh.num_devices} devices, but {machine.name} has "
            f"{machine.num_devices}; the nearest legal value is --gin 'Mesh.shape = {tuple(shape)}'."
        )
        on_machine = divides.problems(config.replace(mesh=nearest), specs, decoding=True)
        texts = [problem.text for problem in on_machine if problem.text not in on_mesh]
        others = (f"with Mesh.shape {list(shape)}, {text}" for text in texts)
        yield from _problems("mesh", [text, *others])
    # A pattern without an array may be a typing error, or meant for another model on the same mesh.
    names = [*specs, *weights_of(specs), *BATCH_ARRAYS]
    for pattern in mesh.unmatched_overrides(names):
        last = pattern.rpartition("/")[2].strip("*")
        hint = did_you_mean(last, (name.rpartition("/")[2] for name in names), prefix="*/")
        text = f"Mesh.overrides has {pattern!r}, which no tensor of this model matches{hint}"
        yield Finding("mesh", text, "note")


def _data_problems(config: Config, request: DoctorRequest) -> Iterator[str]:
    """Yields what does not fit the prepared data. If it cannot be read, this is the only problem."""
    from gshard_nmt.data.sets.shards import PreparedData

    assert request.data is not None
    try:
        prepared = PreparedData.open(request.data)
    except UserError as error:
        yield str(error)
        return
    yield from map(str, prepared.misfits(config.data))
    for name in prepared.changed_files() if request.reads_data else ():
        yield f"{name} of {request.data} was changed since it was prepared; prepare the data again"


def _memory(config: Config, specs: ArraySpecs, machines: Sequence[Topology]) -> Iterator[Finding]:
    """Checks that the training state alone fits each machine; a step needs more than that."""

    def state_bytes(devices: int) -> int:
        total, mesh = 0, nearest_mesh(config.mesh, devices)
        for name, spec in specs.items():
            shards = 1
            with contextlib.suppress(UserError):  # the checks of the mesh report it
                shards = math.prod(map(mesh.axis_size, mesh.partition(spec.letters, name)))
            total += spec.nbytes // shards
        return total

    for machine in machines:
        if machine.chip is not None:
            owner, needed = f"a device of {machine.name}", state_bytes(machine.num_devices)
            yield _fits_memory(
                *(needed, machine.chip.hbm_bytes, owner),
                "split the weights over at least {} times the devices, or make the model smaller",
            )
    # Virtual CPU devices share this machine's memory, so more of them do not help.
    cpus = [machine.num_devices for machine in machines if machine.chip is None]
    for devices in cpus if machines else [config.mesh.num_devices]:
        owner, needed = f"this machine ({devices} CPU devices)", devices * state_bytes(devices)
        yield _fits_memory(
            *(needed, free_machine_memory(), owner),
            "make the model smaller, or take a machine with more memory",
        )


def _fits_memory(needed: int, available: int, owner: str, advice: str) -> Finding:
    """Compares the bytes of the training state with those of a memory."""
    sizes = f"the training state takes {size_text(needed)} of the {size_text(available)} of {owner}"
    if needed > available:
        times = 2 ** math.ceil(math.log2(needed / available))
        return Finding("memory", f"{sizes}; {advice.format(times)}.", "PROBLEM")
    if needed > 0.6 * available:
        sizes += (
            ", which leaves little for activations; gshard-inspect --topology shows the memory of a "
            "whole step"
        )
    return Finding("memory", sizes, "ok")


def _disk(specs: ArraySpecs, train: Train, workdir: Path) -> Finding:
    """Checks that the last and the best checkpoints fit on the disk, and one that is being written.

    Those of Train.keep_every are not counted.
    """
    count = train.keep_last + train.keep_best + 1
    state = sum(spec.nbytes for spec in specs.values())
    if paths.is_url(workdir):
        text = f"{workdir} is in a bucket; three checkpoints take {size_text(3 * state)}"
        return Finding("disk", text, "ok")
    folder = workdir.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        text = f"--workdir {workdir}: {folder} is a file; give a folder."
        return Finding("disk", text, "PROBLEM")
    free, needed = shutil.disk_usage(folder).free, count * state
    text = f"{count} checkpoints take {size_text(needed)} of the {size_text(free)} free at {folder}"
    if needed > free:
        return Finding("disk", f"{text}; make room, or put --workdir on a larger disk.", "PROBLEM")
    return Finding("disk", text, "ok")
