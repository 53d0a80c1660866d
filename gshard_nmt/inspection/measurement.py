"""The record of a measurement on real devices, with the constants that follow from it.

The collectives of one kind on D devices take a latency, and the time that their bytes need at some
bandwidth. Both are fitted to the measured times. For chips of the table (spmd/chips.py) the model of the
links predicts the same times without any measurement. A CPU has no table, so there the fit predicts.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gshard_nmt.inspection.timing import Estimate, estimate
from gshard_nmt.spmd.chips import Chip

PAPER_GROWTH = {"all-to-all": 0.5, "all-reduce": 0.0}
"""The exponent p of the growth D^p of a collective's time (GShard section 5.3, Figure 9)."""


@dataclasses.dataclass(frozen=True)
class CollectiveTime:
    """The time of one collective.

    Attributes:
      kind: the kind of collective.
      devices: D, the devices that exchange data.
      nbytes: bytes on one device: the output of an all-gather, the input of other kinds.
      rounds: the measured seconds of one collective in each round.
      predicted: the seconds by the model of the links; None if nothing is known about them.
    """

    kind: str
    devices: int
    nbytes: int
    rounds: Sequence[float]
    predicted: float | None = None

    @property
    def seconds(self) -> Estimate:
        """The measured time."""
        return estimate(self.rounds)


@dataclasses.dataclass(frozen=True)
class PartTime:
    """The time of one part of a layer.

    Attributes:
      name: the name of the part.
      rounds: the measured seconds in each round.
      predicted: the seconds by the roofline and the collectives.
      flops: multiplications and additions on one device.
      sent: bytes of the collectives on one device.
    """

    name: str
    rounds: Sequence[float]
    predicted: float
    flops: float
    sent: int

    @property
    def seconds(self) -> Estimate:
        """The measured time."""
        return estimate(self.rounds)


@dataclasses.dataclass(frozen=True)
class Fit:
    """The constants of one kind of collective on D devices.

    Attributes:
      latency: seconds of a collective without bytes.
      bandwidth: bytes on one device divided by the seconds that they add; infinite if they add nothing.
    """

    latency: float
    bandwidth: float

    def seconds(self, nbytes: float) -> float:
        """Returns the time of a collective of this many bytes on one device."""
        return self.latency + nbytes / self.bandwidth


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was measured on the devices of this machine.

    Attributes:
      config: the name of the config.
      devices: text that names the devices.
      count: their number.
      mesh: axis -> size.
      chip: the peaks of a device: from the table, or measured.
      is_fitted: whether the peaks and the predictions of collectives come from this measurement.
      collectives: times of collectives.
      parts: times of the parts of a layer.
      rounds: number of rounds.
      notes: what the reader must know.
    """

    config: str
    devices: str
    count: int
    mesh: Mapping[str, int]
    chip: Chip
    is_fitted: bool
    collectives: Sequence[CollectiveTime]
    parts: Sequence[PartTime]
    rounds: int
    notes: Sequence[str] = ()

    def fits(self) -> dict[tuple[str, int], Fit]:
        """Returns the constants of each kind of collective and number of devices."""
        return fits(self.collectives)

    def predicted(self, time: CollectiveTime) -> float:
        """Returns the predicted seconds of a collective: by the links, or by the fit."""
        if time.predicted is not None:
            return time.predicted
        return self.fits()[time.kind, time.devices].seconds(time.nbytes)

    def growths(self) -> dict[str, Estimate]:
        """Returns for each kind the exponent p of the growth D^p, for the largest arrays.

        Kinds that were measured on one number of devices alone have none.
        """
        by_kind = {}
        for kind in dict.fromkeys(time.kind for time in self.collectives):
            if (exponents := _exponents(self.collectives, kind)) is not None:
                by_kind[kind] = estimate(exponents)
        return by_kind


def fits(times: Sequence[CollectiveTime]) -> dict[tuple[str, int], Fit]:
    """Fits latency and bandwidth for each kind of collective and number of devices."""
    groups: dict[tuple[str, int], list[CollectiveTime]] = {}
    for time in times:
        groups.setdefault((time.kind, time.devices), []).append(time)
    return {
        key: fit([t.nbytes for t in group], [t.seconds.median for t in group])
        for key, group in groups.items()
    }


def fit(nbytes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Returns the latency and the bandwidth with the smallest sum of squared relative errors.

    Neither constant is negative. With one size only, there is no latency.
    """
    sizes, times = np.array(nbytes, float), np.array(seconds, float)

    def solved(columns: list[np.ndarray]) -> np.ndarray:
        rows = np.stack(columns, axis=1) / times[:, np.newaxis]
        return np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)[0]

    ones = np.ones(len(times))
    if len(set(nbytes)) < 2:
        return Fit(0.0, float(1 / solved([sizes])[0]))
    latency, per_byte = solved([ones, sizes])
    if latency < 0:
        latency, per_byte = 0.0, solved([sizes])[0]
    elif per_byte <= 0:
        return Fit(float(solved([ones])[0]), math.inf)
    return Fit(float(latency), float(1 / per_byte))


def _exponents(times: Sequence[CollectiveTime], kind: str) -> list[float] | None:
    """Returns the exponent of the growth with the devices in each round, for the largest arrays."""
    largest: dict[int, CollectiveTime] = {}
    for time in times:
        if time.kind == kind and time.nbytes >= largest.get(time.devices, time).nbytes:
            largest[time.devices] = time
    if len(largest) < 2:
        return None
    logs = np.log(list(largest))
    rounds = zip(*(time.rounds for time in largest.values()), strict=True)
    return [float(np.polyfit(logs, np.log(seconds), 1)[0]) for seconds in rounds]


def as_json(measurement: Measurement) -> dict[str, Any]:
    """Returns the measurement as a dict for JSON. Scripts of users read these keys."""
    chip = measurement.chip
    return {
        "config": measurement.config,
        "devices": measurement.devices,
        "count": measurement.count,
        "mesh": dict(measurement.mesh),
        "rounds": measurement.rounds,
        "predictions": "fitted" if measurement.is_fitted else chip.source,
        "peak_flops": chip.peak_flops,
        "memory_bandwidth": chip.hbm_bandwidth,
        "collectives": [
            {
                "kind": time.kind,
                "devices": time.devices,
                "bytes": time.nbytes,
                **_seconds(time.seconds),
                "predicted_seconds": measurement.predicted(time),
            }
            for time in measurement.collectives
        ],
        "fits": [
            {
                "kind": kind,
                "devices": devices,
                "latency_seconds": constants.latency,
                "bandwidth": constants.bandwidth if math.isfinite(constants.bandwidth) else None,
            }
            for (kind, devices), constants in measurement.fits().items()
        ],
        "growth": {
            kind: {"exponent": e.median, "low": e.low, "high": e.high}
            for kind, e in measurement.growths().items()
        },
        "parts": [
            {
                "part": part.name,
                **_seconds(part.seconds),
                "predicted_seconds": part.predicted,
                "flops": part.flops,
                "bytes_sent": part.sent,
            }
            for part in measurement.parts
        ],
        "notes": list(measurement.notes),
    }


def _seconds(seconds: Estimate) -> dict[str, float]:
    return {"seconds": seconds.median, "low": seconds.low, "high": seconds.high}
