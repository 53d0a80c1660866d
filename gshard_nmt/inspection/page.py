"""The report of an inspection as one HTML page with its figures inside."""

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gshard_nmt import files, web_page
from gshard_nmt.inspection import terminal
from gshard_nmt.inspection.communication import KINDS as COLLECTIVE_KINDS
from gshard_nmt.inspection.memory import CATEGORIES
from gshard_nmt.inspection.origin import KINDS as WORK_KINDS
from gshard_nmt.inspection.record import Inspection

_GIB = 2**30
_CATEGORY_COLORS = ("#5b8db8", "#2f5d8a", "#c59b3a", "#999999", "#b5654a")


def write_page(inspections: Sequence[Inspection], tokens: float, file: Path) -> None:
    """Writes the page; it needs no network.

    Args:
      inspections: of one config, one a topology.
      tokens: the budget that a run's cost is given for.
      file: where.
    """
    first = inspections[0]
    names = ", ".join(found.topology.name for found in inspections)
    alt = "memory of a device by category, time of a step by kind of work"
    body = [
        web_page.image(_svg(_figure(inspections)), "svg", alt),
        _growth(inspections),
        *(_section(found, tokens) for found in inspections),
    ]
    title = f"{first.config} on {names}"
    files.write(file, web_page.page(title, _headline(inspections), "\n".join(body)))


def _headline(inspections: Sequence[Inspection]) -> str:
    found = inspections[-1]
    fits = "fits" if found.memory.fits and not found.does_not_fit else "does not fit"
    words = (
        f"{terminal.count_text(found.counts.total)} parameters; one {found.step} step {fits}: "
        f"{terminal.size_text(found.memory.peak)} on each of {found.topology.num_devices:,} devices"
    )
    if found.step_seconds:
        words += f", {terminal.seconds_text(found.step_seconds)} predicted"
    return words


def _figure(inspections: Sequence[Inspection]) -> Any:
    """Memory by category (GShard Figure 7) beside time by kind of work (Figure 8)."""
    from matplotlib.figure import Figure

    names = [found.topology.name for found in inspections]
    figure = Figure(figsize=(11, 2.2 + 0.55 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2)
    starts = [0.0] * len(names)
    for category, color in zip(CATEGORIES, _CATEGORY_COLORS, strict=True):
        sizes = [found.memory.by_category.get(category, 0) / _GIB for found in inspections]
        label = category.replace("_", " ")
        left.barh(names, sizes, left=starts, label=label, color=color)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    for place, found in enumerate(inspections):
        if found.memory.hbm:
            edge = found.memory.hbm / _GIB
            left.plot([edge, edge], [place - 0.45, place + 0.45], color="black", linewidth=2)
    left.set_xlabel("GiB of one device (the line: what it has)")
    timed = [found for found in inspections if found.step_seconds]
    if timed:
        _draw_times(right, timed)
        right.set_xlabel("predicted seconds of a step")
    else:
        _draw_counts(right, [found for found in inspections if found.has_program])
        right.set_xlabel("MiB in collectives of a step")
    for axes in (left, right):
        axes.locator_params(axis="x", nbins=6)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            axes.legend(
                handles, labels, ncols=3, fontsize=8, frameon=False, loc="lower left",
                bbox_to_anchor=(0, 1),
            )  # fmt: skip
    return figure


def _draw_times(axes: Any, timed: Sequence[Inspection]) -> None:
    names = [found.topology.name for found in timed]
    starts = [0.0] * len(timed)
    colors = _colors(len(WORK_KINDS) + len(COLLECTIVE_KINDS))
    for kind in (*WORK_KINDS, *COLLECTIVE_KINDS):
        color = next(colors)
        seconds = [_seconds_of(found, kind) for found in timed]
        if any(seconds):
            axes.barh(names, seconds, left=starts, label=kind, color=color)
            starts = [start + each for start, each in zip(starts, seconds, strict=True)]


def _draw_counts(axes: Any, made: Sequence[Inspection]) -> None:
    names = [found.topology.name for found in made]
    starts = [0.0] * len(made)
    colors = _colors(len(COLLECTIVE_KINDS))
    for kind in COLLECTIVE_KINDS:
        color = next(colors)
        sizes = [
            sum(s.bytes_per_step for s in found.sources if s.kind == kind) / 2**20 for found in made
        ]
        if any(sizes):
            axes.barh(names, sizes, left=starts, label=kind, color=color)
            starts = [start + each for start, each in zip(starts, sizes, strict=True)]


def _colors(count: int):
    import matplotlib

    chosen = matplotlib.colormaps["tab20"]
    return iter([chosen(i % 20) for i in range(count)])


def _seconds_of(found: Inspection, kind: str) -> float:
    if work := found.by_kind().get(kind):
        return work.seconds
    return sum(source.seconds or 0.0 for source in found.sources if source.kind == kind)


def _growth(inspections: Sequence[Inspection]) -> str:
    if len(inspections) < 2:
        return ""
    figure = web_page.image(_svg(_growth_figure(inspections)), "svg", "growth with devices")
    return (
        f"<h2>What grows with the number of devices</h2>{figure}"
        f"<pre>{html.escape(terminal.growth(inspections))}</pre>"
    )


def _growth_figure(inspections: Sequence[Inspection]) -> Any:
    """Program, compile time, memory and communication against devices (GShard Figures 2, 7, 9)."""
    from matplotlib.figure import Figure

    ordered = sorted(inspections, key=lambda found: found.topology.num_devices)
    made = [found for found in ordered if found.has_program]
    figure = Figure(figsize=(11, 3), layout="constrained")
    curves: dict[str, list[float]] = {
        "instructions": [found.compilation.instructions or 0 for found in made],
        "compile seconds of CPU": [found.compilation.compile_cpu_seconds or 0 for found in made],
        "GiB of a device": [found.memory.peak / _GIB for found in ordered],
        "all-to-all seconds": [_seconds_of(found, "all-to-all") for found in made],
    }
    for axes, (title, values) in zip(figure.subplots(1, 4), curves.items(), strict=True):
        shown = ordered if title.startswith("GiB") else made
        axes.plot([found.topology.num_devices for found in shown], values, marker="o")
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.15 * max(values, default=0) or 1)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("devices")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _svg(figure: Any) -> bytes:
    import matplotlib

    made = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "gshard-nmt"}):
        figure.savefig(made, format="svg", metadata={"Date": None})
    return made.getvalue()


def _section(found: Inspection, tokens: float) -> str:
    report = html.escape(terminal.as_text(found, tokens))
    return (
        f"<h2>{html.escape(found.topology.name)}</h2>{_unasked(found)}<pre>{report}</pre>"
        f"{_collectives(found)}"
    )


def _unasked(found: Inspection) -> str:
    items = "".join(
        f"<li>{html.escape(source.kind)}, {terminal.size_text(source.bytes_per_step)}: "
        f"{html.escape(source.why)}<br>{html.escape(terminal.remedy_text(source))}</li>"
        for source in found.sources
        if not source.asked_for
    )
    if not items:
        return ""
    setting = html.escape("\n".join(terminal.overrides_text(found)))
    return f"<div class='unasked'><b>Collectives that nobody asked for</b><ul>{items}</ul>{setting}</div>"


def _collectives(found: Inspection) -> str:
    if not found.sources:
        return ""
    rows = "".join(
        "<tr>"
        f"<td class='words'>{html.escape(source.kind)}</td><td>{source.count:,}</td>"
        f"<td>{html.escape(source.shape)}</td><td>{terminal.size_text(source.bytes_per_step)}</td>"
        f"<td>{source.group_size:,}</td>"
        f"<td class='words'>{html.escape(source.origin.where)}: {html.escape(source.why)}</td></tr>"
        for source in found.sources
    )
    return (
        "<details><summary>Every collective, tensor by tensor</summary><div class='wide'><table>"
        "<thead><tr><th>kind</th><th>times</th><th>array on one device</th><th>bytes in a step</th>"
        f"<th>devices</th><th>why</th></tr></thead><tbody>{rows}</tbody></table></div></details>"
    )
