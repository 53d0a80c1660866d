"""Draws the figures of a report: memory and time of the topologies, and what grows with devices."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gshard_nmt import web_page
from gshard_nmt.inspection.memory import CATEGORIES
from gshard_nmt.inspection.origin import WORK_KINDS
from gshard_nmt.inspection.record import Inspection
from gshard_nmt.inspection.tables import BYTES, COUNT, LONG_SECONDS, STEP_SECONDS, Kind, common_unit
from gshard_nmt.spmd.program import COLLECTIVE_KINDS

_FARTHEST_LIMIT = 20
"""The memory of a device is drawn if it is less than this many times the peak."""
_DARK: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), "#ddd"),
    **dict.fromkeys(("xtick.color", "ytick.color"), "#ddd"),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "#1d1f21"),
}
"""matplotlib's settings for a dark page."""


def image(
    draw: Callable[[Sequence[Inspection]], Any], inspections: Sequence[Inspection], alt: str
) -> str:
    """Returns a figure as an HTML element. A browser chooses its colors, for a light or a dark page.

    Args:
      draw: `costs` or `growth`.
      inspections: one config on one or more topologies.
      alt: describes the figure.
    """
    return image_of(lambda: draw(inspections), alt)


def image_of(draw: Callable[[], Any], alt: str) -> str:
    """Returns the figure that `draw` makes as an HTML element; `alt` describes it."""
    light, dark = (_svg(draw, settings) for settings in ({}, _DARK))
    return f"<div class='wide'>{web_page.image(light, 'svg', alt, dark)}</div>"


def _svg(draw: Callable[[], Any], settings: dict[Any, Any]) -> bytes:
    import matplotlib

    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "gshard-nmt", **settings}):
        draw().savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def costs(inspections: Sequence[Inspection]) -> Any:
    """Draws memory by category (GShard Figure 7) beside time by kind of work (Figure 8)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.2 + 0.55 * len(inspections)), layout="constrained")
    left, right = figure.subplots(1, 2)
    memory = {
        category.replace("_", " "): [
            inspection.memory.by_category.get(category, 0) for inspection in inspections
        ]
        for category in CATEGORIES
    }
    unit = _stack(left, inspections, memory, BYTES, "memory of one device ({})")
    _draw_limits(left, inspections, unit)
    timed = [inspection for inspection in inspections if inspection.step_seconds]
    if timed:
        seconds = {
            kind: [_seconds_of(inspection, kind) for inspection in timed]
            for kind in (*WORK_KINDS, *COLLECTIVE_KINDS)
        }
        _stack(right, timed, seconds, STEP_SECONDS, "predicted step ({})")
    else:
        compiled = [inspection for inspection in inspections if inspection.has_program]
        sizes = {
            kind: [inspection.collective_bytes(kind) for inspection in compiled]
            for kind in COLLECTIVE_KINDS
        }
        _stack(right, compiled, sizes, BYTES, "collectives of a step ({})")
    for axes in (left, right):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(ncols=3, fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    return figure


def _stack(
    axes: Any,
    inspections: Sequence[Inspection],
    parts: Mapping[str, Sequence[float]],
    kind: Kind,
    label: str,
) -> float:
    """Draws a bar for each inspection that is a stack of parts, and returns the size of its unit.

    Args:
      parts: the name of each part -> its length in each bar.
      label: the label of the axis, with "{}" for the unit.
    """
    import matplotlib

    colors = matplotlib.colormaps["tab20"]
    names = [inspection.topology.name for inspection in inspections]
    starts = [0.0] * len(names)
    totals = [sum(bar) for bar in zip(*parts.values(), strict=True)]
    unit, size, _ = common_unit(totals, kind)
    for place, (part, values) in enumerate(parts.items()):
        if any(values):
            lengths = [value / size for value in values]
            axes.barh(names, lengths, left=starts, label=part, color=colors(place % 20))
            starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    axes.set_xlabel(label.format(unit))
    axes.locator_params(axis="x", nbins=6)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    return size


def _draw_limits(axes: Any, inspections: Sequence[Inspection], unit: float) -> None:
    """Draws the memory of the devices as lines, if they are not so far away that no bar is seen."""
    import matplotlib

    color = matplotlib.rcParams["text.color"]
    for bar, inspection in enumerate(inspections):
        memory = inspection.memory
        if memory.hbm and memory.hbm < _FARTHEST_LIMIT * memory.peak:
            limits = [memory.hbm / unit] * 2
            label = "" if axes.lines else "memory of the device"
            axes.plot(limits, [bar - 0.45, bar + 0.45], color=color, linewidth=2, label=label)


def _seconds_of(inspection: Inspection, kind: str) -> float:
    if work := inspection.by_kind().get(kind):
        return work.seconds
    return inspection.collective_seconds(kind)


def growth(inspections: Sequence[Inspection]) -> Any:
    """Plots size, compile time, memory and all-to-all time by devices (GShard Figures 2, 7, 9)."""
    from matplotlib.figure import Figure

    ordered = sorted(inspections, key=lambda inspection: inspection.topology.num_devices)
    figure = Figure(figsize=(11, 3), layout="constrained")
    curves: list[tuple[str, Kind, Callable[[Inspection], float | None]]] = [
        ("instructions", COUNT, lambda i: i.compilation.instructions),
        ("compiler's CPU ({})", LONG_SECONDS, lambda i: i.compilation.compile_cpu_seconds),
        ("memory ({})", BYTES, lambda i: i.memory.peak),
        ("all-to-all ({})", STEP_SECONDS, lambda i: i.collective_seconds("all-to-all")),
    ]
    for axes, (title, kind, value_of) in zip(figure.subplots(1, 4), curves, strict=True):
        points = [(i.topology.num_devices, value_of(i)) for i in ordered]
        values = [value for _, value in points if value is not None]
        unit, size, _ = common_unit(values, kind)
        devices = [devices for devices, value in points if value is not None]
        axes.plot(devices, [value / size for value in values], marker="o")
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.15 * max(values, default=0) / size or 1)
        axes.set_title(title.format(unit), fontsize=10)
        axes.set_xlabel("devices")
        axes.spines[["top", "right"]].set_visible(False)
    return figure
