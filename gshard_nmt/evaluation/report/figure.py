"""The trend line of a report: the scores over the languages, most training pairs first."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gshard_nmt.evaluation.report.drawing import DARK, LIGHT, Palette, image, new_figure, paint
from gshard_nmt.evaluation.systems.systems import (
    DirectionResult,
    System,
    direction_labels,
    missing_labels,
    ordered_directions,
)

_WINDOW = 10
"""Languages in the sliding mean of the chart, as in GShard Figure 6."""
_MANY = 20
"""With fewer languages than this, the figure shows them one by one and no sliding mean."""

_RESAMPLES = 1000
_SEED = 12345


def trend(systems: Sequence[System], title: str, kind: str, dark: bool = False) -> bytes:
    """Draws the trend line of each system, as GShard Figure 6. Returns the image.

    Args:
      systems: the main system first; its languages are the x axis, most training pairs first.
      title: the title of the figure.
      kind: "png" or "svg".
      dark: whether to use colors for a dark page.
    """
    return image(lambda: draw_trend(systems, title, DARK if dark else LIGHT), kind)


def sliding_mean(
    values: Sequence[float] | np.ndarray, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the mean of the values in each window of `window` neighbors.

    GShard Figure 6 smooths with a window of 10, but the paper does not say how the windows are placed. We
    use all windows that lie wholly within the data, so 100 languages give 91 points.

    Args:
      values: float64[languages]; NaN marks a missing value.
      window: number of neighbors.

    Returns:
      The places of the centers of the windows, and the means: float64[len(values) - window + 1] each. A
      mean is NaN if more than half of its window is missing.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(values, np.float64), window)
    means = _nan_mean(windows)
    means[np.isnan(windows).sum(-1) > window / 2] = np.nan
    return np.arange(len(means)) + (window - 1) / 2, means


def confidence_band(
    values: Sequence[float] | np.ndarray, window: int
) -> tuple[np.ndarray, np.ndarray]:
    """Computes the 95 % interval of each sliding mean, by bootstrap over the languages of its window.

    It says how far the mean depends on which languages are in the window. It does not contain the
    uncertainty of the score of each language.

    Args:
      values, window: those of `sliding_mean`.

    Returns:
      The lower and upper bounds: float64[len(values) - window + 1] each.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(values, np.float64), window)
    draws = np.random.default_rng(_SEED).random((_RESAMPLES, window))
    bounds = []
    for members in windows:
        present = members[~np.isnan(members)]
        count = len(present)
        if window - count > window / 2:
            bounds.append((np.nan, np.nan))
        else:
            means = present[(draws[:, :count] * count).astype(int)].mean(-1)
            bounds.append(tuple(np.percentile(means, [2.5, 97.5])))
    low, high = np.array(bounds).T
    return low, high


def draw_trend(systems: Sequence[System], title: str, palette: Palette = LIGHT) -> Any:
    """Returns the figure of `trend`, a matplotlib Figure."""
    results = ordered_directions(systems)
    width = float(np.clip(0.15 * len(results), 9, 18)) + (3 if len(systems) > 1 else 0)
    figure = new_figure((width, 5.2), palette)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    top.set_title(title)
    shows_gains = has_gains(results)
    if shows_gains:
        top.axhline(0, color=palette.faint, lw=0.8)
    top.set_ylabel("gain in BLEU over the bilingual baseline" if shows_gains else "BLEU")
    if len(systems) == 1:
        _draw_one(top, results, shows_gains, palette)
    else:
        _draw_several(top, systems, results, shows_gains, palette)
    _draw_training_pairs(bottom, results, palette)
    if notes := _notes(systems, results, shows_gains):
        figure.supxlabel(notes, fontsize=7.5, color=palette.text)
    paint(figure, palette)
    return figure


def has_gains(results: Sequence[DirectionResult]) -> bool:
    """Returns whether figures show gains over baselines: at least half of the languages have one."""
    return sum(result.delta_bleu is not None for result in results) * 2 >= len(results)


def values_of(system: System, results: Sequence[DirectionResult], shows_gains: bool) -> np.ndarray:
    """Returns the gain or BLEU of a system at each place of the x axis; NaN if it is missing."""
    own = system.by_direction()
    values = []
    for place in results:
        result = own.get(place.direction)
        value = result and (result.delta_bleu if shows_gains else result.bleu)
        values.append(np.nan if value is None else value)
    return np.array(values, np.float64)


def window_of(number: int) -> int:
    """Returns the number of neighbors in the sliding mean of this number of languages."""
    return _WINDOW if number >= _MANY else 1


def _draw_one(
    axes: Any, results: Sequence[DirectionResult], shows_gains: bool, palette: Palette
) -> None:
    """Draws a single system: each language with its interval, and the sliding mean."""
    system = System("", results, "")
    values = values_of(system, results, shows_gains)
    if shows_gains:
        _draw_intervals(axes, results, np.arange(len(results)), palette.interval, "95 % interval")
    places = np.arange(len(results))
    axes.plot(places, values, "o", color=palette.points, ms=4, label="each language")
    window = window_of(len(results))
    if window > 1:
        centers, means = sliding_mean(values, window)
        color = palette.systems[0]
        _draw_band(axes, band_of(system, values, window), window, color)
        axes.plot(centers, means, color=color, lw=2, label=f"mean of {window} neighbors")
    axes.legend(frameon=False)


def _draw_several(
    axes: Any,
    systems: Sequence[System],
    results: Sequence[DirectionResult],
    shows_gains: bool,
    palette: Palette,
) -> None:
    """Draws the trend line of each system. With few languages, it draws each language."""
    window = window_of(len(results))
    for number, system in enumerate(systems):
        color = palette.systems[number % len(palette.systems)]
        values = values_of(system, results, shows_gains)
        label = _label(system, values, shows_gains)
        style = "--" if system.is_dense else "-"
        if window == 1:
            places = np.arange(len(results)) + 0.5 * ((number + 0.5) / len(systems) - 0.5)
            if shows_gains:
                own = system.by_direction()
                rows = [own.get(result.direction) for result in results]
                _draw_intervals(axes, rows, places, color, None)
            marker = {"mfc": palette.background} if system.is_dense else {}
            axes.plot(places, values, "o", color=color, ms=6, label=label, **marker)
            continue
        centers, means = sliding_mean(values, window)
        _draw_band(axes, band_of(system, values, window), window, color)
        axes.plot(centers, means, style, color=color, lw=2, label=label)
    title = "" if window == 1 else f"mean of {window} neighbors"
    # Lines may go anywhere, so the legend is beside them.
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    axes.legend(frameon=False, title=title, alignment="left", **place)


def band_of(
    system: System, values: np.ndarray, window: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the confidence band of a trend line; None if it has none.

    Published scores have no band.
    """
    if system.run is None:
        return None
    return confidence_band(values, window)


def _draw_band(
    axes: Any, band: tuple[np.ndarray, np.ndarray] | None, window: int, color: str
) -> None:
    """Draws a confidence band if there is one."""
    if band is not None:
        low, high = band
        places = np.arange(len(low)) + (window - 1) / 2
        axes.fill_between(places, low, high, color=color, alpha=0.14, lw=0)


def _label(system: System, values: np.ndarray, shows_gains: bool) -> str:
    """Returns the text of a system in the legend: its name, and its mean."""
    present = values[~np.isnan(values)]
    dense = " (dense)" if system.is_dense else ""
    if not len(present):
        return f"{system.name}{dense}: no values"
    mean = f"{present.mean():+.1f}" if shows_gains else f"{present.mean():.1f}"
    return f"{system.name}{dense}: {mean} on average"


def _draw_intervals(
    axes: Any,
    results: Sequence[DirectionResult | None],
    places: np.ndarray,
    color: str,
    label: str | None,
) -> None:
    """Draws the intervals of the gains that have one."""
    intervals = {
        place: result.delta_ci95
        for place, result in zip(places, results, strict=True)
        if result is not None and result.delta_ci95
    }
    if intervals:
        lows, highs = zip(*intervals.values(), strict=True)
        lines = axes.vlines(list(intervals), lows, highs, color=color, lw=3, label=label)
        lines.set_capstyle("round")
        if label is None:
            lines.set_alpha(0.45)


def _draw_training_pairs(axes: Any, results: Sequence[DirectionResult], palette: Palette) -> None:
    import matplotlib.ticker

    places = np.arange(len(results))
    heights = [max(result.train_pairs, 1) for result in results]
    axes.bar(places, heights, color=palette.bars)
    axes.set_yscale("log")
    axes.set_ylim(min(heights) / 3, max(heights) * 1.5)
    axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.yaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.0f}"))
    axes.set_ylabel("training pairs")
    # The axis is at most 18 inches wide, which has room for 120 labels.
    step = -(-len(results) // 120)
    labels = direction_labels(results)[::step]
    many = len(results) > 30
    axes.set_xticks(places[::step], labels, rotation=90 if many else 60)
    axes.tick_params("x", labelsize=7.5 if many else 9)
    axes.set_xlim(-0.8, len(results) - 0.2)
    axes.set_xlabel("languages, most training pairs first")


def _notes(systems: Sequence[System], results: Sequence[DirectionResult], shows_gains: bool) -> str:
    """Returns a line for each kind of gap in the figure."""
    lines = []
    if shows_gains:
        labels = direction_labels(results)
        without = [label for label, r in zip(labels, results, strict=True) if r.delta_bleu is None]
        if without:
            lines.append(f"no baseline: {_listed(without)}")
    for system in systems[1:]:
        if missing := missing_labels(systems, system):
            lines.append(f"{system.name} has no scores of {_listed(missing)}")
    return "\n".join(lines)


def _listed(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:8])
    return shown if len(labels) <= 8 else f"{shown} and {len(labels) - 8} more"


def _nan_mean(windows: np.ndarray) -> np.ndarray:
    """Returns the mean of the numbers in each row; NaN if it has none, without numpy's warning."""
    present = ~np.isnan(windows)
    counts = present.sum(-1)
    sums = np.where(present, windows, 0.0).sum(-1)
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
