"""The figures: the trend line over the languages, and quality above the cost of training."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gshard_nmt.evaluation.report.report import has_gains
from gshard_nmt.evaluation.systems import Result, System, labels
from gshard_nmt.quantities import YEAR_DAYS

_WINDOW = 10
"""Languages in the sliding mean of the chart, as in GShard Figure 6."""
_MANY = 20
"""With fewer languages than this, the figure shows them one by one and no sliding mean."""


TEXT, FAINT, POINTS, BARS = "#1c1c1c", "#999999", "#1f5fa8", "#7a8a99"
COLORS = ("#d1492e", "#1f5fa8", "#2a8a57", "#8a4fb0", "#b8860b", "#00899a", "#c2417f", "#5d6770")
"""The colors of the systems. They start again if there are more systems."""


_STYLE: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "text.parse_math"), False),
    "axes.edgecolor": FAINT, "font.size": 9, "svg.hashsalt": "gshard-nmt",
    # Letters of an SVG stay text, because their outlines would be most of the page.
    "svg.fonttype": "none",
}  # fmt: skip


def new_figure(size: tuple[float, float]) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def image(draw: Callable[[], Any], kind: str) -> bytes:
    """Returns a figure as PNG or SVG. The same figure always gives the same bytes."""
    import matplotlib

    image = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    with matplotlib.rc_context(_STYLE):
        draw().savefig(image, format=kind, dpi=150, metadata=metadata)
    return image.getvalue()


def draw_trend(systems: Sequence[System], title: str) -> Any:
    """Draws the trend line of each system, as GShard Figure 6. Returns a matplotlib Figure.

    The languages of the main system are the x axis, most training pairs first.
    """
    results = systems[0].ordered()
    width = float(np.clip(0.15 * len(results), 9, 18)) + (3 if len(systems) > 1 else 0)
    figure = new_figure((width, 5.2))
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    top.set_title(title, loc="left", pad=22 if len(systems) == 1 else None)
    shows_gains = has_gains(results)
    if shows_gains:
        top.axhline(0, color=FAINT, lw=0.8)
    top.set_ylabel("gain in BLEU over the baseline" if shows_gains else "BLEU")
    _draw_systems(top, systems, shows_gains)
    _draw_training_pairs(bottom, results)
    return figure


def sliding_mean(values: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the centers of the windows, and the mean of each: float64[len(values) - window + 1] each.

    GShard Figure 6 smooths with a window of 10, but the paper does not say how the windows are placed. We
    use all windows that lie wholly within the data, so 100 languages give 91 points. NaN marks a missing
    value. A mean is NaN if more than half of its window is missing.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(values, np.float64), window)
    present = ~np.isnan(windows)
    counts, sums = present.sum(-1), np.where(present, windows, 0.0).sum(-1)
    means = np.where(2 * counts >= window, sums / np.maximum(counts, 1), np.nan)
    return np.arange(len(means)) + (window - 1) / 2, means


def _draw_systems(axes: Any, systems: Sequence[System], shows_gains: bool) -> None:
    """Draws each language of a single system or of few languages, and the sliding mean of many."""
    results = systems[0].ordered()
    is_alone, is_smooth = len(systems) == 1, len(results) >= _MANY
    for number, system in enumerate(systems):
        color, own = COLORS[number % len(COLORS)], system.by_direction()
        rows = [own.get(result.direction) for result in results]
        scores = [row and (row.delta if shows_gains else row.bleu) for row in rows]
        values = np.array([np.nan if score is None else score for score in scores], np.float64)
        name = _label(system, values, shows_gains)
        if is_alone or not is_smooth:
            points = POINTS if is_alone else color
            places = np.arange(len(results)) + 0.5 * ((number + 0.5) / len(systems) - 0.5)
            if shows_gains:
                label = "95 % interval" if is_alone else None
                named = zip(places, rows, strict=True)
                known = {x: interval for x, row in named if row and (interval := row.delta_ci95)}
                ends = np.array(list(known.values()), np.float64).reshape(-1, 2).T
                if known:
                    lines = axes.vlines(
                        list(known), *ends, color=points, lw=3, alpha=0.45, label=label
                    )
                    lines.set_capstyle("round")
            marker = {"mfc": "#ffffff"} if system.is_dense else {}
            label = "each language" if is_alone else name
            axes.plot(places, values, "o", color=points, ms=5, label=label, **marker)
        if is_smooth:
            label = f"mean of {_WINDOW} neighbors" if is_alone else name
            style = "--" if system.is_dense else "-"
            axes.plot(*sliding_mean(values, _WINDOW), style, color=color, lw=2, label=label)
    if is_alone:
        # Points may be anywhere, so the legend is above them.
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
        axes.legend(frameon=False, ncols=3, **place)
        return
    # Lines may go anywhere, so the legend is beside them.
    title = f"mean of {_WINDOW} neighbors" if is_smooth else ""
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    axes.legend(frameon=False, title=title, alignment="left", **place)


def _label(system: System, values: np.ndarray, shows_gains: bool) -> str:
    present = values[~np.isnan(values)]
    name = f"{system.name}{' (dense)' if system.is_dense else ''}"
    if not len(present):
        return f"{name}: no values"
    return f"{name}: {present.mean():{'+.1f' if shows_gains else '.1f'}} on average"


def _draw_training_pairs(axes: Any, results: Sequence[Result]) -> None:
    import matplotlib.ticker

    places = np.arange(len(results))
    heights = [max(result.test.train_pairs, 1) for result in results]
    axes.bar(places, heights, color=BARS)
    axes.set_yscale("log")
    axes.set_ylim(min(heights) / 3, max(heights) * 1.5)
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("training pairs")
    # The axis is at most 18 inches wide, which has room for 120 labels.
    step = -(-len(results) // 120)
    many = len(results) > 30
    axes.set_xticks(places[::step], labels(results)[::step], rotation=90 if many else 60)
    axes.tick_params("x", labelsize=7.5 if many else 9)
    axes.set_xlim(-0.8, len(results) - 0.2)
    axes.set_xlabel("languages, most training pairs first")


def draw_cost(systems: Sequence[System], baselines: System | None) -> Any:
    """Draws quality above the cost of training, as GShard Figure 1. Returns a matplotlib Figure.

    Systems of unknown cost are not drawn. All bilingual baselines together are one point.
    """
    import matplotlib.ticker

    shows_gains = has_gains(systems[0].results)
    points: list[tuple[float, float, str, str]] = []
    for number, system in enumerate(systems):
        quality = system.average()["delta_bleu" if shows_gains else "bleu"]
        if system.budget.device_years is not None and quality is not None:
            color = COLORS[number % len(COLORS)]
            points.append((system.budget.device_years, quality, system.name, color))
    if baselines is not None and baselines.budget.device_years is not None:
        quality = 0.0 if shows_gains else baselines.average()["bleu"]
        points.append((baselines.budget.device_years, quality, baselines.name, TEXT))
    unit, factor = cost_unit(max(years for years, *_ in points))
    figure = new_figure((9, 4.2))
    axes = figure.subplots()
    if shows_gains:
        axes.axhline(0, color=FAINT, lw=0.8)
    for number, (years, quality, name, color) in enumerate(points):
        axes.plot(years * factor, quality, "o", ms=9, color=color)
        axes.annotate(
            name,
            (years * factor, quality),
            xytext=(8, -14 if number % 2 else 6),  # neighbors of equal cost stay legible
            textcoords="offset points",
            color=TEXT,
        )
    costs = [years * factor for years, *_ in points]
    if min(costs) > 0 and max(costs) > 10 * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,g}"))
    axes.margins(0.18)
    axes.set_xlabel(f"cost of training in device-{unit}")
    axes.set_ylabel("mean gain in BLEU over the baselines" if shows_gains else "mean BLEU")
    return figure


def cost_unit(years: float) -> tuple[str, float]:
    """Returns the unit that suits a cost, and how many of it a device-year has."""
    days = YEAR_DAYS
    units = [("years", 1.0), ("days", days), ("hours", days * 24), ("minutes", days * 1440)]
    return next(((unit, n) for unit, n in units if years * n >= 1), units[-1])
