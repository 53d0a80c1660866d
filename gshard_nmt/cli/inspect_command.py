"""gshard-inspect: its flags, and the inspection that they ask for."""

from pathlib import Path
from typing import TYPE_CHECKING

from absl.flags import FlagValues

from gshard_nmt import outputs, paths
from gshard_nmt.cli.flags import Command, Flags, define_config, read_config, written_file
from gshard_nmt.errors import UserError

if TYPE_CHECKING:
    from gshard_nmt.settings.config import Config


def _define_inspect(flags: Flags) -> None:
    # fmt: off
    define_config(flags)
    flags.switch("parameters", "print the table of parameters and compile nothing")
    flags.texts("topology", "NAME",
        "machine to compile for, such as v3:32x32, v4:4x4x4, v5e:16x16, v5p:8x8x8, v6e:16x16, "
        "h100:8 or cpu:8. May be given several times; the report then shows how the cost grows. If "
        "not given, CPU devices in the shape of the config's mesh")
    flags.switch("scale_with_devices",
        "scale experts, groups and rows with the number of devices: multiply each by the devices "
        "of the topology, divided by the devices of the config's mesh")
    flags.switch("advise",
        "rank all meshes, rules and device orders for --topology by formula, compile the best, and "
        "print the settings to use")
    flags.integer("best", "N", "for --advise: number of meshes to compile", 3, minimum=1)
    flags.switch("equivalence",
        "run the config at reduced size, on one CPU device and on a mesh of several, and compare "
        "loss and gradients")
    flags.integer("devices", "N",
        "for --equivalence: number of CPU devices of the mesh; 0 takes the largest power of 2 up to that "
        "of the config's mesh, at most 8 (8 if that mesh has one device)", 0, minimum=0)
    flags.switch("doctor",
        "check config, mesh, data, memory and disk, and list all problems at once")
    flags.text("data", "DIR", "for --doctor: the prepared data that the run will use")
    flags.switch("read_data",
        "for --doctor: read all files of --data and compare them with their checksums")
    flags.text("workdir", "DIR",
        "for --doctor: the run folder; its disk is checked and, with --data, its run")
    flags.number("tokens", "N",
        "number of training tokens for which the report gives the cost", 1e12, minimum=1)
    flags.text("json", "FILE", "file to write the numbers of the report to, as JSON")


_INSPECTIONS = {
    "": ("topology", "scale_with_devices", "tokens", "json"),
    "advise": ("topology", "best", "json"),
    "parameters": (),
    "equivalence": ("devices",),
    "doctor": ("data", "read_data", "workdir"),
}
"""The flags that each inspection takes besides --config and --gin.

The name "" is the default inspection: it compiles a step and reports what the step costs.
"""


def _check_flags_belong_together(values: FlagValues) -> None:
    given = {name for name in values if values[name].value and not values[name].using_default_value}
    chosen = [name for name in _INSPECTIONS if name in given] or [""]
    if len(chosen) > 1:
        listed = " and ".join(f"--{name}" for name in chosen)
        raise UserError(f"{listed} are different inspections; give only one of them at a time.")
    allowed = _INSPECTIONS[chosen[0]]
    if unused := given - {*allowed, *chosen, "config", "gin"}:
        task = f"with --{chosen[0]}" if chosen[0] else "on the default inspection"
        listed = ", ".join(f"--{name}" for name in allowed) or "no other flag"
        raise UserError(
            f"--{min(unused)} has no effect {task}, which takes {listed} besides --config and --gin. "
            "Leave it out, or choose another inspection."
        )


def _inspect(values: FlagValues) -> None:
    _check_flags_belong_together(values)
    if values.doctor:
        from gshard_nmt.inspection.doctor import DoctorRequest, show_doctor

        data, workdir = (
            paths.folder_path(name, text) if text else None
            for name, text in (("data", values.data), ("workdir", values.workdir))
        )
        show_doctor(DoctorRequest(values.config, values.gin, data, workdir, values.read_data))
        return
    config, name = read_config(values), Path(values.config).stem
    if values.parameters:
        from gshard_nmt.inspect_config import show_parameters

        show_parameters(config)
    elif values.equivalence:
        from gshard_nmt.inspection.equivalence import show_equivalence

        show_equivalence(config, name, values.devices)
    else:
        _compile(values, config, name)


def _compile(values: FlagValues, config: "Config", name: str) -> None:
    """Compiles the step of the config for each topology, or the best meshes of one (--advise)."""
    from gshard_nmt import inspect_config as inspect
    from gshard_nmt.settings.config import find_config

    if values.advise and len(values.topology) != 1:
        raise UserError(
            f"--advise is given {len(values.topology)} topologies; it takes exactly one. Name a TPU "
            "slice or GPUs with --topology, for instance v3:4x4."
        )
    request = inspect.Request(
        config,
        name,
        values.topology or [inspect.default_topology(config.mesh)],
        values.scale_with_devices,
        values.tokens,
    )
    file = written_file(values, "json")
    if file and outputs.is_same_file(file, find_config(values.config)):
        raise UserError(f"--json {file} is the config itself. Give it another file.")
    if values.advise:
        inspect.advise(request, values.best, file)
    else:
        inspect.inspect(request, file)


INSPECT = Command("gshard-inspect",
    "estimates the memory, communication and time of a config's training step on a machine. It needs "
    "the compiler for that machine, but not the machine.",
    "gshard-inspect --config demo --topology v3:2x2",
    ("config",), _define_inspect, _inspect, needs={"read_data": "data"})  # fmt: skip
