"""gshard-inspect --doctor: everything that is wrong with a run before it starts, at once.

A program stops at the first mistake that it meets; here each check goes on after the others, and each
problem comes with the nearest legal value. A setting that cannot be is left at its default for the
checks that follow. Nothing is lowered or compiled.
"""

import dataclasses
import functools
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gshard_nmt.checks import versions
from gshard_nmt.errors import UserError
from gshard_nmt.inspection.terminal import size_text
from gshard_nmt.settings import values
from gshard_nmt.settings.values import Key, Setting
from gshard_nmt.spmd.topology import Topology

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config
    from gshard_nmt.spmd.lowering import ArraySpec


@dataclasses.dataclass(frozen=True)
class Patient:
    """What is examined.

    Attributes:
      source: a config's name or path.
      overrides: the bindings of --gin.
      data: the folder of prepared data; None leaves it out.
      workdir: where the run would be; None means here.
      topologies: machines to run on; none means this one.
    """

    source: str
    overrides: Sequence[str] = ()
    data: Path | None = None
    workdir: Path | None = None
    topologies: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the examination.

    Attributes:
      area: what was looked at.
      text: what was found.
      mark: "PROBLEM", "note" or "ok".
    """

    area: str
    text: str
    mark: str

    @property
    def is_problem(self) -> bool:
        """Whether the run would end at it."""
        return self.mark == "PROBLEM"


def examine(patient: Patient) -> list[Finding]:
    """Every finding, problems and what is in order, in the order of a run."""
    machines, unknown = _machines(patient.topologies)
    findings = _problems("versions", [*versions.packages(), *versions.tpu_compiler(machines)])
    findings = findings or [_ok("versions", "as tested")]
    config, wrong = read_config(patient)
    findings += wrong or [_ok("config", "every setting is known, of its type and in its range")]
    findings += _problems("topology", unknown)
    if config is None:
        return findings
    specs = _specs(config)
    findings += mesh_findings(config, specs, machines)
    if patient.data is not None:
        data = list(data_problems(config, patient.data))
        findings += _problems("data", data) or [_ok("data", f"{patient.data} fits the config")]
    findings += memory_findings(config, specs, machines)
    findings.append(disk_finding(specs, patient.workdir or Path()))
    return findings


def _problems(area: str, texts: Iterable[str]) -> list[Finding]:
    return [Finding(area, text, "PROBLEM") for text in texts]


def _ok(area: str, text: str) -> Finding:
    return Finding(area, text, "ok")


def _machines(names: Sequence[str]) -> tuple[list[Topology], list[str]]:
    """The topologies of these names, and what is wrong with the others."""
    known, unknown = [], []
    for name in names:
        try:
            known.append(Topology.parse(name))
        except UserError as error:
            unknown.append(str(error))
    return known, unknown


def read_config(patient: Patient) -> tuple["Config | None", list[Finding]]:
    """The configuration, and what is wrong with its settings, which are then left at their defaults.

    Without a file to read there is no configuration.
    """
    from gshard_nmt.settings.gin_reader import read_settings

    unread: list[str] = []
    try:
        bound = read_settings(patient.source, patient.overrides, problems=unread)
    except UserError as error:
        return None, _problems("config", [str(error)])
    classes = values.load_classes()
    findings = _problems("config", dict.fromkeys(unread))
    kept: dict[Key, Setting] = {}
    left_out: list[Key] = []
    for class_name in classes:
        mine = {key: setting for key, setting in bound.items() if key[0] == class_name}
        refused = _leave_out_refused(mine, classes)
        findings += _problems("config", filter(None, refused.values()))
        kept |= mine
        left_out += refused
    config = values.build(kept, classes)
    if left_out:
        defaults = values.named_settings(getattr(config, name.lower()) for name in classes)
        taken = ", ".join(f"{'.'.join(key)} = {defaults[key]!r}" for key in left_out)
        text = f"what follows is for the defaults instead: {taken}"
        findings.append(Finding("config", text, "note"))
    return config, findings


def _leave_out_refused(mine: dict[Key, Setting], classes: Mapping[str, type]) -> dict[Key, str]:
    """Takes the settings of one class that cannot be out of `mine`; returns them and why.

    The reason is "" where a setting is refused only because another is left out.
    """
    refused: dict[Key, str] = {}
    while message := _refusal(mine, classes):
        named = [(found[1], found[2]) for found in re.finditer(r"\b([A-Z][a-z]+)\.(\w+)", message)]
        # Of settings that contradict each other, the one that was given over the config.
        candidates = [key for key in named if key in mine] or list(mine)
        given = [key for key in candidates if mine[key].where.startswith("--gin")]
        key = (given or candidates)[0]
        refused[key] = "" if any(name in refused for name in named) else message
        del mine[key]
    return refused


def _refusal(bound: Mapping[Key, Setting], classes: Mapping[str, type]) -> str:
    """Why these settings, the others at their defaults, make no configuration; "" where they do."""
    try:
        values.build(bound, classes)
    except UserError as error:
        return str(error)
    return ""


def _specs(config: "Config") -> dict[str, "ArraySpec"]:
    from gshard_nmt.model.steps import StepFunctions
    from gshard_nmt.run.compiled_steps import specs_of

    data = config.data
    steps = StepFunctions(
        config.model, config.optimizer, data.source_vocabulary, data.target_vocabulary
    )
    return specs_of(steps)


def mesh_findings(
    config: "Config", specs: Mapping[str, "ArraySpec"], machines: Sequence[Topology]
) -> list[Finding]:
    """What does not divide over the mesh, and over the mesh that each machine would need."""
    found = list(mesh_problems(config, specs))
    findings = _problems("mesh", found) or [_ok("mesh", _mesh_words(config))]
    for machine in machines:
        fitting = fitted(config, machine.num_devices)
        if fitting is config:
            continue
        shape, now = fitting.mesh.shape, config.mesh
        wrong = (
            f"Mesh.shape {list(now.shape)} has {now.num_devices} of the {machine.num_devices} devices "
            f"of {machine.name}; the nearest legal value is --gin 'Mesh.shape = {tuple(shape)}'."
        )
        findings += _problems("mesh", [wrong])
        on_it = (text for text in mesh_problems(fitting, specs) if text not in found)
        findings += _problems("mesh", (f"with Mesh.shape {list(shape)}, {text}" for text in on_it))
    return findings + _override_notes(config, specs)


def _override_notes(config: "Config", specs: Mapping[str, "ArraySpec"]) -> list[Finding]:
    """Patterns that match nothing: slips, or meant for another model on the same mesh."""
    from gshard_nmt.model.steps import BATCH_ARRAYS

    notes = []
    names = [*specs, *(name.removeprefix("parameters/") for name in specs), *BATCH_ARRAYS]
    for pattern in config.mesh.unmatched_overrides(names):
        last = pattern.rpartition("/")[2].strip("*")
        hint = values.did_you_mean(last, (name.rpartition("/")[2] for name in names), prefix="*/")
        text = f"Mesh.overrides has {pattern!r}, which no tensor of this model matches{hint}"
        notes.append(Finding("mesh", text, "note"))
    return notes


def fitted(config: "Config", devices: int) -> "Config":
    """The config on a mesh of so many devices: the first axis takes what the others leave.

    An axis whose size does not divide the devices takes what it has in common with them.
    """
    mesh = config.mesh
    if mesh.num_devices == devices:
        return config
    shape: list[int] = []
    left = devices
    for size in mesh.shape[:0:-1]:
        shape.insert(0, math.gcd(size, left))
        left //= shape[0]
    made = dataclasses.replace(
        mesh, axes=mesh.axes or ("x",), shape=(left, *shape), device_order=()
    )
    return dataclasses.replace(config, mesh=made)


def mesh_problems(config: "Config", specs: Mapping[str, "ArraySpec"]) -> Iterator[str]:
    """What does not divide over the mesh, each size once, by the name of its setting."""
    arrays: list[tuple[str, str, tuple[int, ...]]] = [
        ("Data.rows", "B", (config.data.rows,)),
    ]
    if config.model.encoder_layers:  # a language model translates nothing
        arrays.append(("Decode.rows", "B", (config.decode.rows,)))
    arrays += [(name, spec.letters, spec.shape) for name, spec in specs.items()]
    checks = [functools.partial(config.mesh.check_divides, *array) for array in arrays]
    checks += [functools.partial(_check_groups, config, side) for side in ("source", "target")]
    seen = set()
    for check in checks:
        try:
            check()
        except UserError as error:
            # One size is wrong in many arrays; the letter and the numbers are the same.
            array, _, rest = str(error).partition(": dimension ")
            key = rest or array.partition(", but ")[0]
            if key not in seen:
                seen.add(key)
                setting = _setting_of(config, rest)
                yield f"{setting} ({array}): dimension {rest}" if setting else str(error)


_SIZES = {
    "E": (("Model", "experts"),),
    "M": (("Model", "model_dim"),),
    "H": (("Model", "hidden_dim"), ("Model", "expert_hidden_dim")),
    "N": (("Model", "heads"),),
    "D": (("Model", "head_dim"),),
    "V": (("Data", "source_vocabulary"), ("Data", "target_vocabulary")),
}
"""The settings that a dimension of a weight may come from."""


def _setting_of(config: "Config", complaint: str) -> str:
    """The setting behind "E has size 8, ...", by letter and size; "" where it is none of them."""
    found = re.match(r"(\w) has size (\d+),", complaint)
    if found is None:
        return ""
    sizes = values.named_settings([config.model, config.data])
    keys = [key for key in _SIZES.get(found[1], ()) if sizes[key] == int(found[2])]
    return ".".join(keys[0]) if keys else ""


def _check_groups(config: "Config", side: str) -> None:
    """Raises UserError where the tokens of a batch do not divide into groups, or these over devices."""
    data, model = config.data, config.model
    if not model.experts or (side == "source" and not model.encoder_layers):
        return
    length = data.source_length if side == "source" else data.target_length
    try:
        groups = model.moe(training=True).groups(data.rows, length)
    except UserError as error:
        raise UserError(f"Data.rows and Data.{side}_length: {error}") from None
    given = model.num_groups and not model.group_size
    name = "Model.num_groups" if given else f"groups of Data.{side}_length"
    config.mesh.check_divides(name, "G", (groups,))


def _mesh_words(config: "Config") -> str:
    axes = zip(config.mesh.axes, config.mesh.shape, strict=True)
    shape = " x ".join(f"{axis}={size}" for axis, size in axes)
    return f"{shape or 'one device'}: rows, groups, experts and every weight divide"


def data_problems(config: "Config", folder: Path) -> Iterator[str]:
    """Where prepared data and config differ."""
    from gshard_nmt.data.shards import PreparedData

    try:
        prepared = PreparedData.open(folder)
    except UserError as error:
        yield str(error)
        return
    before, now = prepared.manifest["data"], config.data.shaping()
    for name in ("source_length", "target_length"):
        if now[name] < before[name]:
            yield (
                f"{folder} holds examples of up to {before[name]} tokens, and Data.{name} is "
                f"{now[name]}; the nearest legal value is {before[name]}."
            )
    for name in ("direction", "vocabulary_model", "language_tags"):
        if now[name] != before[name]:
            yield (
                f"{folder} was prepared with Data.{name} = {before[name]!r}, and the config says "
                f"{now[name]!r}; use the same, or prepare the data again."
            )
    for name in ("source_vocabulary", "target_vocabulary"):
        if now[name] != before[name]:
            yield (
                f"{folder} was prepared with Data.{name} = {before[name]}, and the config says "
                f"{now[name]}; the nearest legal value is {before[name]}."
            )
    languages = {pair.language for pair in prepared.pairs}
    for language in config.data.languages:
        if language not in languages:
            yield (
                f"Data.languages names {language}, which {folder} does not hold; it has "
                f"{', '.join(sorted(languages))}."
            )


def memory_findings(
    config: "Config", specs: Mapping[str, "ArraySpec"], machines: Sequence[Topology]
) -> list[Finding]:
    """Whether the training state alone, which a step only adds to, fits each machine."""
    findings = []
    for machine in machines:
        if machine.chip is not None:
            held = _state_bytes(fitted(config, machine.num_devices), specs)
            findings.append(_room(held, machine.chip.hbm_bytes, f"a device of {machine.name}"))
    # Virtual CPU devices share this machine's memory.
    here = [machine.num_devices for machine in machines if machine.chip is None]
    for devices in here if machines else [config.mesh.num_devices]:
        needed = devices * _state_bytes(fitted(config, devices), specs)
        findings.append(_room(needed, _machine_memory(), f"this machine ({devices} CPU devices)"))
    return findings


def _state_bytes(config: "Config", specs: Mapping[str, "ArraySpec"]) -> int:
    """Bytes of the training state on one device."""
    return sum(_shard_bytes(config, name, spec) for name, spec in specs.items())


def _room(needed: int, has: int, what: str) -> Finding:
    sizes = f"the training state takes {size_text(needed)} of the {size_text(has)} of {what}"
    if needed > has:
        least = 2 ** math.ceil(math.log2(needed / has))
        return Finding(
            "memory",
            f"{sizes}; split the weights over {least} times as many devices, or make the model "
            "smaller.",
            "PROBLEM",
        )
    if needed > 0.6 * has:
        return _ok("memory", f"{sizes}, which leaves little for activations: see --topology")
    return _ok("memory", sizes)


def _shard_bytes(config: "Config", name: str, spec: "ArraySpec") -> int:
    try:
        partition = config.mesh.partition(spec.letters, name)
    except UserError:  # among the problems of the mesh
        partition = ()
    return spec.nbytes // math.prod(config.mesh.axis_size(axes) for axes in partition)


def _machine_memory() -> int:
    """Bytes of memory that this machine could give to a new program."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**62


def disk_finding(specs: Mapping[str, "ArraySpec"], workdir: Path) -> Finding:
    """Whether the checkpoints fit: the last, the best, and one that is being written."""
    state = sum(spec.nbytes for spec in specs.values())
    there = workdir.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        text = f"--workdir {workdir}: {there} is a file; name a folder."
        return Finding("disk", text, "PROBLEM")
    free = shutil.disk_usage(there).free
    sizes = (
        f"three checkpoints take {size_text(3 * state)} of the {size_text(free)} free at {there}"
    )
    if 3 * state > free:
        return Finding("disk", f"{sizes}; make room, or put --workdir on a larger disk.", "PROBLEM")
    return _ok("disk", sizes)


def as_text(findings: Sequence[Finding]) -> str:
    """One line a finding."""
    return "".join(f"{one.mark:<8} {one.area:<9} {one.text}\n" for one in findings)
