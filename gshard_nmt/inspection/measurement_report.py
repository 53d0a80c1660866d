"""The tables and sentences of a measurement, for the terminal and the page."""

from collections.abc import Sequence

from gshard_nmt.inspection.measurement import PAPER_GROWTH, Measurement
from gshard_nmt.inspection.tables import (
    BYTES,
    COUNT,
    FLOPS,
    LABEL,
    MICROSECONDS,
    MILLISECONDS,
    RATE,
    RATIO,
    Column,
    Kind,
    Table,
    Value,
)
from gshard_nmt.inspection.terminal import table
from gshard_nmt.inspection.timing import Estimate
from gshard_nmt.quantities import flops_text


def tables(measurement: Measurement) -> list[Table]:
    """Returns the tables that have rows: collectives, constants, growth, and the parts of a layer."""
    listed = [collectives(measurement), constants(measurement), growth(measurement)]
    return [table for table in [*listed, parts(measurement)] if table.rows]


def collectives(measurement: Measurement) -> Table:
    """Returns the time of each collective, measured beside predicted."""
    return Table(
        "Collectives by bytes and number of devices",
        "The time of one collective (GShard Figure 9). The bytes are those of one device: the output of "
        "an all-gather, the input of other kinds.",
        [
            *(Column("kind"), Column("devices", COUNT), Column("bytes", BYTES)),
            *(Column("measured", MILLISECONDS), Column("interval", LABEL)),
            *(Column("predicted", MILLISECONDS), Column("measured / predicted", RATIO)),
        ],
        [
            [
                *(time.kind, time.devices, time.nbytes, time.seconds.median),
                *(interval(time.seconds, MILLISECONDS), measurement.predicted(time)),
                _ratio(time.seconds.median, measurement.predicted(time)),
            ]
            for time in measurement.collectives
        ],
    )


def constants(measurement: Measurement) -> Table:
    """Returns the fitted latency and bandwidth of the collectives."""
    return Table(
        "Constants of the collectives",
        "Latency and bandwidth, fitted to the measured times: time = latency + bytes / bandwidth. The "
        "bytes are those of one device.",
        [
            *(Column("kind"), Column("devices", COUNT)),
            *(Column("latency", MICROSECONDS), Column("bandwidth", RATE)),
        ],
        [
            [kind, devices, fit.latency, fit.bandwidth if fit.bandwidth < float("inf") else None]
            for (kind, devices), fit in measurement.fits().items()
        ],
    )


def growth(measurement: Measurement) -> Table:
    """Returns how the time of the largest arrays grows with the number of devices."""
    rows: list[Sequence[Value]] = []
    for kind, exponent in measurement.growths().items():
        paper = PAPER_GROWTH.get(kind)
        values = f"{exponent.low:.2f} to {exponent.high:.2f}"
        rows.append([kind, exponent.median, values, paper])
    return Table(
        "Growth with the number of devices D",
        "The exponent p if the time of the largest arrays grows as D^p. GShard (section 5.3) has 0.5 for "
        "an all-to-all and 0 for an all-reduce on a torus.",
        [
            *(Column("kind"), Column("exponent", RATIO)),
            *(Column("interval", LABEL), Column("GShard", RATIO)),
        ],
        rows,
    )


def parts(measurement: Measurement) -> Table:
    """Returns the time of the parts of a layer."""
    return Table(
        "One layer by parts",
        "Each part is a program of its own (GShard Figure 8). Dispatch and combine contain the "
        "all-to-alls. Predicted is the roofline plus the time of the collectives.",
        [
            *(Column("part"), Column("products", FLOPS), Column("sent", BYTES)),
            *(Column("measured", MILLISECONDS), Column("interval", LABEL)),
            *(Column("predicted", MILLISECONDS), Column("measured / predicted", RATIO)),
        ],
        [
            [
                *(part.name, part.flops, part.sent, part.seconds.median),
                *(interval(part.seconds, MILLISECONDS), part.predicted),
                _ratio(part.seconds.median, part.predicted),
            ]
            for part in measurement.parts
        ],
    )


def interval(estimate: Estimate, kind: Kind) -> str:
    """Returns the ends of an interval in the first unit of a kind of column: "1.00 to 2.50"."""
    _, size, form = kind.units[0]
    return f"{estimate.low / size:{form}} to {estimate.high / size:{form}}"


def _ratio(measured: float, predicted: float) -> float | None:
    return measured / predicted if predicted else None


def lines(measurement: Measurement) -> list[str]:
    """Returns the devices, their peaks, and the notes."""
    shape = " x ".join(f"{axis}={size}" for axis, size in measurement.mesh.items())
    chip = measurement.chip
    source = "measured here" if measurement.is_fitted else f"{chip.name}, {chip.source}"
    spread = "intervals of 95 %" if measurement.rounds > 5 else "the range of all rounds"
    return [
        f"{measurement.config}, measured on {measurement.devices}, mesh {shape}: medians of "
        f"{measurement.rounds} rounds in turns, with {spread}",
        f"peaks of a device ({source}): {flops_text(chip.peak_flops)} a second in products, "
        f"{chip.hbm_bandwidth / 1e9:,.2f} GB/s of memory traffic",
        *(f"note: {note}" for note in measurement.notes),
    ]


def text(measurement: Measurement) -> str:
    """Returns the report for a terminal."""
    written = lines(measurement)
    for part in tables(measurement):
        heads = tuple(column.name for column in part.columns)
        first, _, rest = part.title.partition(" ")
        written += ["", f"{first.upper()} {rest}", table([heads, *part.texts()])]
    return "\n".join(written) + "\n"
