"""The figure of quality above the cost of training."""

from collections.abc import Sequence
from typing import Any

from gshard_nmt.evaluation.report.drawing import DARK, LIGHT, Palette, image, new_figure, paint
from gshard_nmt.evaluation.report.figure import has_gains
from gshard_nmt.evaluation.systems.systems import System


def cost(
    systems: Sequence[System], baselines: System | None, kind: str, dark: bool = False
) -> bytes:
    """Draws quality above the cost of training, as GShard Figure 1. Returns the image.

    Args:
      systems: those of the report. Systems of unknown cost are not drawn.
      baselines: all bilingual baselines together; None if there are none or their cost is unknown.
      kind: "png" or "svg".
      dark: whether to use colors for a dark page.
    """
    return image(lambda: draw_cost(systems, baselines, DARK if dark else LIGHT), kind)


def draw_cost(systems: Sequence[System], baselines: System | None, palette: Palette = LIGHT) -> Any:
    """Returns the figure of `cost`, a matplotlib Figure."""
    import matplotlib.ticker

    shows_gains = has_gains(systems[0].results)
    points: list[tuple[float, float | None, str, str]] = []
    for number, system in enumerate(systems):
        quality = system.average()["delta_bleu" if shows_gains else "bleu"]
        if system.budget.device_years is not None:
            color = palette.systems[number % len(palette.systems)]
            points.append((system.budget.device_years, quality, system.name, color))
    if baselines is not None and baselines.budget.device_years is not None:
        quality = 0.0 if shows_gains else baselines.average()["bleu"]
        points.append((baselines.budget.device_years, quality, baselines.name, palette.text))
    unit, factor = cost_unit(max(years for years, *_ in points))
    figure = new_figure((9, 4.2), palette)
    axes = figure.subplots()
    if shows_gains:
        axes.axhline(0, color=palette.faint, lw=0.8)
    for number, (years, quality, name, color) in enumerate(points):
        axes.plot(years * factor, quality, "o", ms=9, color=color)
        axes.annotate(
            name,
            (years * factor, quality),
            xytext=(8, -14 if number % 2 else 6),  # neighbors of equal cost stay legible
            textcoords="offset points",
            color=palette.text,
        )
    costs = [years * factor for years, *_ in points]
    if min(costs) > 0 and max(costs) > 10 * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,g}"))
    axes.margins(0.18)
    axes.set_xlabel(f"cost of training in device-{unit}")
    axes.set_ylabel(
        "mean gain in BLEU over the bilingual baselines" if shows_gains else "mean BLEU"
    )
    paint(figure, palette)
    return figure


def cost_unit(years: float) -> tuple[str, float]:
    """Returns the unit that suits a cost, and how many of it a device-year has."""
    units = [("years", 1.0), ("days", 365.25), ("hours", 365.25 * 24), ("minutes", 365.25 * 1440)]
    return next(((unit, n) for unit, n in units if years * n >= 1), units[-1])
