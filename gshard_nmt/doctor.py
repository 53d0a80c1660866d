"""gshard-inspect --doctor: everything that is wrong with a run before it starts, at once.

A program stops at the first mistake that it meets; here each check goes on after the others, and each
problem comes with the nearest legal value. Nothing is lowered or compiled.
"""

import dataclasses
import functools
import importlib.metadata
import math
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gshard_nmt import settings
from gshard_nmt.errors import UserError
from gshard_nmt.inspection.text import size_text
from gshard_nmt.settings import Key, Setting
from gshard_nmt.spmd.topology import Topology

if TYPE_CHECKING:
    from gshard_nmt.config import Config
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
    """One line of the examination: an area, what was found, and whether it is a problem."""

    area: str
    text: str
    is_problem: bool


def examine(patient: Patient) -> list[Finding]:
    """Every finding, problems and what is in order, in the order of a run."""
    findings = list(_problems("versions", versions())) or [_ok("versions", "as tested")]
    config, wrong = read_config(patient)
    findings += _problems("config", wrong)
    if config is None:
        return findings
    findings.append(_ok("config", "every setting is known and of its type"))
    specs = _specs(config)
    mesh = list(mesh_problems(config, specs))
    findings += _problems("mesh", mesh) or [_ok("mesh", _mesh_words(config))]
    if patient.data is not None:
        data = list(data_problems(config, patient.data))
        findings += _problems("data", data) or [_ok("data", f"{patient.data} fits the config")]
    findings += memory_findings(config, specs, patient.topologies)
    findings.append(disk_finding(specs, patient.workdir or Path()))
    return findings


def _problems(area: str, texts: Sequence[str] | Iterator[str]) -> list[Finding]:
    return [Finding(area, text, True) for text in texts]


def _ok(area: str, text: str) -> Finding:
    return Finding(area, text, False)


def read_config(patient: Patient) -> tuple["Config | None", list[str]]:
    """The configuration, or None and everything that is wrong with its settings."""
    from gshard_nmt.gin_reader import read_settings

    try:
        bound = read_settings(patient.source, patient.overrides)
    except UserError as error:
        return None, [str(error)]
    classes = settings.load_classes()
    problems = []
    for class_name in classes:
        mine = {key: setting for key, setting in bound.items() if key[0] == class_name}
        alone = {key: _refusal({key: setting}, classes) for key, setting in mine.items()}
        # A message that says where is of one value's type; the rest must be judged together.
        typed = {key: alone[key] for key in mine if mine[key].where in alone[key]}
        together = _refusal({k: v for k, v in mine.items() if k not in typed}, classes)
        problems += [*typed.values(), *filter(None, [together])]
    if problems:
        return None, problems
    return settings.build(bound, classes), []


def _refusal(bound: Mapping[Key, Setting], classes: Mapping[str, type]) -> str:
    """Why these settings, the others at their defaults, make no configuration; "" where they do."""
    try:
        settings.build(bound, classes)
    except UserError as error:
        return str(error)
    return ""


def _specs(config: "Config") -> dict[str, "ArraySpec"]:
    from gshard_nmt.model.steps import Steps
    from gshard_nmt.programs import specs_of

    data = config.data
    steps = Steps(config.model, config.optimizer, data.source_vocabulary, data.target_vocabulary)
    return specs_of(steps)


def mesh_problems(config: "Config", specs: Mapping[str, "ArraySpec"]) -> Iterator[str]:
    """What does not divide over the mesh, each size once."""
    arrays: list[tuple[str, str, tuple[int, ...]]] = [
        ("Data.rows", "B", (config.data.rows,)),
        ("Decode.rows", "B", (config.decode.rows,)),
    ]
    arrays += [(name, spec.letters, spec.shape) for name, spec in specs.items()]
    checks = [functools.partial(config.mesh.check_divides, *array) for array in arrays]
    checks += [functools.partial(_check_groups, config, side) for side in ("source", "target")]
    seen = set()
    for check in checks:
        try:
            check()
        except UserError as error:
            # One size is wrong in many arrays; the letter and the numbers are the same.
            key = str(error).partition(": dimension ")[2] or str(error)
            if key not in seen:
                seen.add(key)
                yield str(error)


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
    config.mesh.check_divides(f"groups of Data.{side}_length", "G", (groups,))


def _mesh_words(config: "Config") -> str:
    axes = zip(config.mesh.axes, config.mesh.shape, strict=True)
    shape = " x ".join(f"{axis}={size}" for axis, size in axes)
    return f"{shape}: rows, groups, experts and every weight divide"


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
    config: "Config", specs: Mapping[str, "ArraySpec"], names: Sequence[str]
) -> list[Finding]:
    """Whether the training state alone, which a step only adds to, fits each machine."""
    per_device = sum(_shard_bytes(config, name, spec) for name, spec in specs.items())
    devices = config.mesh.num_devices
    findings = []
    for name in names:
        try:
            topology = Topology.parse(name)
        except UserError as error:
            findings.append(Finding("memory", str(error), True))
            continue
        if topology.num_devices != devices:
            findings.append(
                Finding(
                    "mesh",
                    f"Mesh.shape {list(config.mesh.shape)} is {devices} devices and {name} has "
                    f"{topology.num_devices}; sizes that multiply to {topology.num_devices} are legal.",
                    True,
                )
            )
        elif topology.chip is not None:
            findings.append(_room(per_device, topology.chip.hbm_bytes, f"a device of {name}"))
    if not any(name.partition(":")[0] != "cpu" for name in names):
        # Virtual CPU devices share this machine's memory.
        findings.append(_room(per_device * devices, _machine_memory(), "this machine"))
    return findings


def _room(needed: int, has: int, what: str) -> Finding:
    sizes = f"the training state takes {size_text(needed)} of the {size_text(has)} of {what}"
    if needed > has:
        least = 2 ** math.ceil(math.log2(needed / has))
        return Finding(
            "memory",
            f"{sizes}; split the weights over {least} times as many devices, or make the model "
            "smaller.",
            True,
        )
    if needed > 0.6 * has:
        return _ok("memory", f"{sizes}, which leaves little for activations: see --topology")
    return _ok("memory", sizes)


def _shard_bytes(config: "Config", name: str, spec: "ArraySpec") -> int:
    partition = config.mesh.partition(spec.letters, name)
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
    free = shutil.disk_usage(there).free
    sizes = (
        f"three checkpoints take {size_text(3 * state)} of the {size_text(free)} free at {there}"
    )
    if 3 * state > free:
        return Finding("disk", f"{sizes}; make room, or put --workdir on a larger disk.", True)
    return _ok("disk", sizes)


def versions() -> Iterator[str]:
    """Packages that are missing, or outside the range that this version was tested with."""
    for requirement in importlib.metadata.requires("gshard-nmt") or ():
        found = re.fullmatch(r"([\w.\-]+)((?:[<>=!~]=?[\d.*,\s]*)*)(;.*)?", requirement.strip())
        if found is None or found[3]:
            continue  # an extra's
        name, bounds = found[1], [b for b in found[2].split(",") if b]
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield f"{name} is not installed: pip install '{name}{found[2]}'."
            continue
        if not all(_satisfies(version, bound) for bound in bounds):
            yield f"{name} {version} is installed; gshard-nmt needs {found[2]}: " + (
                f"pip install '{name}{found[2]}'."
            )
    yield from _pairs_that_must_agree()


def _satisfies(version: str, bound: str) -> bool:
    found = re.fullmatch(r"\s*(>=|<=|==|<|>)\s*([\d.]+)\s*", bound)
    if found is None:
        return True
    mine, other = _numbers(version), _numbers(found[2])
    length = max(len(mine), len(other))
    a, b = (list(n) + [0] * (length - len(n)) for n in (mine, other))
    return {">=": a >= b, "<=": a <= b, "==": a == b, "<": a < b, ">": a > b}[found[1]]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0])[:4])


def _pairs_that_must_agree() -> Iterator[str]:
    """jax with jaxlib, TensorFlow with TensorFlow Text: one release each."""
    for one, other, digits in (("jax", "jaxlib", 3), ("tensorflow", "tensorflow-text", 2)):
        try:
            a, b = importlib.metadata.version(one), importlib.metadata.version(other)
        except importlib.metadata.PackageNotFoundError:
            continue  # named above
        if _numbers(a)[:digits] != _numbers(b)[:digits]:
            yield f"{one} {a} and {other} {b} are of different releases: pip install {other}=={a}."


def as_text(findings: Sequence[Finding]) -> str:
    """One line a finding."""
    lines = []
    for one in findings:
        mark = "PROBLEM" if one.is_problem else "ok"
        lines.append(f"{mark:<8} {one.area:<9} {one.text}")
    return "\n".join(lines) + "\n"
