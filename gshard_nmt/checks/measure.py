"""gshard-inspect --measure: times of collectives and of a layer on the devices of this machine.

Measured times stand beside predicted ones, which come from the table of chips and the model of the links.
There is no table for a CPU or an unknown chip. There, two small programs measure the peaks of a device,
and latency and bandwidth of the collectives are fitted to their times.
"""

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gshard_nmt.checks import layer_parts
from gshard_nmt.inspection import (
    causes,
    communication,
    compute,
    hlo,
    links,
    measurement_report,
    page,
    terminal,
    timing,
)
from gshard_nmt.inspection.compute import Work
from gshard_nmt.inspection.measurement import CollectiveTime, Measurement, PartTime, as_json, fits
from gshard_nmt.outputs import ReportFiles
from gshard_nmt.run.arrays import step_functions, training_arrays
from gshard_nmt.settings.config import Config
from gshard_nmt.settings.divides import check_divides
from gshard_nmt.spmd import runtime
from gshard_nmt.spmd.chips import Chip, Gpu, chip_of
from gshard_nmt.spmd.collective_programs import MEASURED_KINDS, collective_program, peak_program
from gshard_nmt.spmd.runtime import Runtime
from gshard_nmt.spmd.topology import Topology

SIZES = (16 * 2**10, 256 * 2**10, 2**20, 4 * 2**20)
"""Bytes on one device of the collectives that are measured."""

_SHARED = (
    "These are virtual devices: they share the cores and the memory of one machine. So the growth with "
    "devices is that of this machine, not that of a network."
)
_NO_TABLE = (
    "The table of chips does not have these devices. The predicted times of collectives are the fit of "
    "latency and bandwidth to the measured times, and those of the layer use the peaks that were "
    "measured here."
)
_TABLE = "Predicted times of collectives are the links' peak bandwidth, without latency."
_ALONE = "With one device nothing is sent, so there are no collectives. Mesh.shape has the devices."


def measure(config: Config, name: str, rounds: int, report: ReportFiles) -> None:
    """Measures on the devices of the config's mesh, and prints the result beside the predictions.

    Args:
      config: the run. Its mesh has the devices, its model and batch the sizes of the layer.
      name: the name of the config.
      rounds: the number of rounds. In each one, every program runs once.
      report: the files for the figures and the page.

    Raises:
      UserError: there are fewer devices than the mesh has, the config does not divide over its mesh, or
        a file cannot be written.
    """
    report.check()
    check_divides(config, training_arrays(config, step_functions(config)))
    result = measurement_of(config, name, rounds, SIZES)
    sys.stdout.write(measurement_report.text(result))
    sys.stdout.flush()
    report.write(as_json(result), lambda file: page.write_measurement(result, file))


def measurement_of(config: Config, name: str, rounds: int, sizes: Sequence[int]) -> Measurement:
    """Compiles all programs, measures them in turns, and predicts their times.

    Args:
      config, name, rounds: as for `measure`.
      sizes: bytes on one device of the collectives.
    """
    machine = Machine.of(runtime.start(config.mesh))
    devices = machine.devices
    count = len(devices)
    numbers = [n for n in range(2, count + 1) if count % n == 0]
    with terminal.waiting(f"compiling collectives for {count} devices"):
        collectives = {
            f"{kind} {number} {nbytes}": collective_program(kind, devices[:number], nbytes)
            for number in numbers
            for kind in MEASURED_KINDS
            for nbytes in sizes
        }
        peaks = {} if machine.chip else {kind: peak_program(kind, devices) for kind in _PEAKS}
    with terminal.waiting(f"compiling the parts of a layer of {name}"):
        parts = _compiled_parts(config, machine)
    programs: dict[str, Callable[[], None]] = {**collectives, **peaks}
    programs |= {part.part.name: part for part in parts}
    with terminal.waiting(f"measuring {len(programs)} programs in {rounds} rounds"):
        seconds = timing.in_turns(programs, rounds, _shown(rounds))
    times = [
        CollectiveTime(
            program.kind,
            program.devices,
            program.nbytes,
            [s / program.times for s in seconds[key]],
            machine.predicted(program.kind, range(program.devices), program.nbytes),
        )
        for key, program in collectives.items()
    ]
    chip = machine.chip or _measured_chip(
        {kind: peaks[kind].amount / float(np.median(seconds[kind])) for kind in peaks}
    )
    part_times = [_part_time(part, seconds[part.part.name], chip, machine, times) for part in parts]
    mesh = dict(zip(config.mesh.axes, config.mesh.shape, strict=True))
    fitted = machine.chip is None
    return Measurement(
        name, machine.name, count, mesh, chip, fitted, times, part_times, rounds, machine.notes
    )


_PEAKS = ("products", "memory")


def _shown(rounds: int) -> Callable[[int], None]:
    """Returns a function that prints the number of a round on stderr."""

    def show(number: int) -> None:
        sys.stderr.write(f"round {number} of {rounds}\n")
        sys.stderr.flush()

    return show


@dataclasses.dataclass(frozen=True)
class Machine:
    """The devices of a mesh, and what is known about them.

    Attributes:
      runtime: the devices.
      topology: the machine by name, for reports; it has no chip if the table has none.
      coordinates: int[devices, axes], the chip of each device; None if the chip is unknown.
      name: text that names the devices.
    """

    runtime: Runtime
    topology: Topology
    coordinates: np.ndarray | None
    name: str

    @property
    def devices(self) -> list[Any]:
        """jax's devices, in the order of the mesh."""
        return list(self.runtime.devices.devices.ravel())

    @property
    def chip(self) -> Chip | None:
        """The chip of the table; None if there is none."""
        return self.topology.chip

    @classmethod
    def of(cls, started: Runtime) -> "Machine":
        """Finds out what the devices are."""
        devices = list(started.devices.devices.ravel())
        first, count = devices[0], len(devices)
        chip = chip_of(first.device_kind)
        if chip is None:
            cores = len(os.sched_getaffinity(0))
            kind = f"virtual CPU devices on {cores} cores" if started.is_cpu else first.device_kind
            return cls(started, Topology(f"cpu:{count}", None, (count,)), None, f"{count} {kind}")
        if isinstance(chip, Gpu):
            hosts = len({device.process_index for device in devices})
            topology = Topology(f"{chip.name}:{count}", chip, (hosts, count // hosts))
            coordinates = np.stack(np.divmod(np.arange(count), count // hosts), axis=1)
        else:
            coordinates = np.array([device.coords[: len(chip.pod)] for device in devices])
            shape = tuple(int(n) + 1 for n in coordinates.max(axis=0))
            topology = Topology(f"{chip.name}:{'x'.join(map(str, shape))}", chip, shape)
        return cls(started, topology, coordinates, f"{count} x {first.device_kind}")

    @property
    def notes(self) -> list[str]:
        """What the reader of the figures must know."""
        is_alone = len(self.devices) == 1
        notes = [_ALONE] if is_alone else [_SHARED] if self.runtime.is_cpu else []
        return [*notes, _TABLE if self.chip else _NO_TABLE]

    def predicted(self, kind: str, group: Sequence[int], nbytes: float) -> float | None:
        """Returns the seconds of a collective by the model of the links; None without a table."""
        if self.chip is None or self.coordinates is None:
            return None
        placement = links.place(group, self.coordinates, self.topology)
        return links.seconds(kind, nbytes, placement, self.chip)


def _measured_chip(rates: dict[str, float]) -> Chip:
    """Returns a chip with measured peaks: FLOPs, and bytes of memory traffic, per second of a device."""
    return Chip(
        "measured",
        devices_per_chip=1,
        peak_flops=rates["products"],
        hbm_bytes=0,
        hbm_bandwidth=rates["memory"],
        link_bandwidth=0.0,
        clock=1.0,
        pod=(1,),
        source="measured here",
    )


@dataclasses.dataclass(frozen=True)
class _CompiledPart:
    """A part of a layer, its program and its inputs."""

    part: layer_parts.Part
    lowered: Any
    program: Any
    inputs: dict[str, Any]

    def __call__(self) -> None:
        import jax

        jax.block_until_ready(self.program(self.inputs))


def _compiled_parts(config: Config, machine: Machine) -> list[_CompiledPart]:
    """Compiles the parts, and runs each once: later parts take what earlier ones return."""
    started, compiled = machine.runtime, []
    arrays: dict[str, Any] = {}
    for part in layer_parts.parts(config):
        lowered, program = _compiled(part, config, started)
        missing = {name: spec for name, spec in part.inputs.items() if name not in arrays}
        arrays |= started.put(layer_parts.values(missing), missing)
        inputs = {name: arrays[name] for name in part.inputs}
        (returned,) = program(inputs)
        arrays |= returned
        compiled.append(_CompiledPart(part, lowered, program, inputs))
    return compiled


def _compiled(part: layer_parts.Part, config: Config, started: Runtime) -> tuple[Any, Any]:
    """Returns the lowered function of a part, and its program."""
    lowered = part.lowered(config)
    return lowered, started.compile(part.name, lambda: lowered)


def _part_time(
    compiled: _CompiledPart,
    seconds: Sequence[float],
    chip: Chip,
    machine: Machine,
    times: Sequence[CollectiveTime],
) -> PartTime:
    """Returns the measured time of a part, beside the time that its program should take."""
    module = hlo.parse(compiled.program.executable.as_text())
    context = causes.Context(
        machine.topology,
        machine.runtime.mesh,
        {},
        machine.coordinates,
        compiled.lowered.annotated,
    )
    sources = communication.collectives(module, context)
    work = sum(compute.work_by_origin(module, chip).values(), Work())
    sending = sum(_sending(source, times) for source in sources)
    return PartTime(
        compiled.part.name,
        seconds,
        work.seconds + sending,
        work.flops,
        sum(source.bytes_per_step for source in sources),
    )


def _sending(source: communication.Source, times: Sequence[CollectiveTime]) -> float:
    """Returns the seconds of a collective of a part: by the links, or by the fit of its kind.

    A kind that was not measured, and a group of another size, take the most similar fit.
    """
    if source.seconds is not None:
        return source.seconds
    constants = fits(times)
    if not constants:
        return 0.0
    kind = source.kind if source.kind in MEASURED_KINDS else "all-reduce"
    nearest = min(
        (key for key in constants if key[0] == kind),
        key=lambda key: abs(key[1] - source.group_size),
    )
    return source.count * constants[nearest].seconds(source.bytes)
